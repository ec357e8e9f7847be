"""The commit log of a generation, and what its entries say together."""
