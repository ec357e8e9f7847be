"""Pipelines as streaming queries: offset windows are written by tasks, committed and published by the driver."""
