"""Pipelines as streaming queries: windows are written by tasks, committed and published by the driver."""
