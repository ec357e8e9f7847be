"""The commit log of a pipeline, and the state that its entries describe."""
