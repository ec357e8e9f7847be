"""The contents of a bucket, and their cost."""
