"""Pipelines as streaming queries. Tasks write offset windows (ranges of a partition's offsets). The driver commits and
publishes them."""
