"""The commit log of a generation, and the state that its entries add up to."""
