"""The settings of a pipeline: their names are Secor's where it has them."""
