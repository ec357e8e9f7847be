"""The contents and the cost of a bucket."""
