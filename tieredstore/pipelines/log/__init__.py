"""The commit log of a pipeline, and the state that the log describes. The log's objects in the output record which
files are written."""
