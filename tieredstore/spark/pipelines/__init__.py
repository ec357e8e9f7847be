"""Pipelines as streaming queries. Tasks write offset windows (ranges of a partition's offsets); the driver commits and
publishes them."""
