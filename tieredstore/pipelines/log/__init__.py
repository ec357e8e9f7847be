"""The commit log of a pipeline, and the state of a pipeline that follows from the log."""
