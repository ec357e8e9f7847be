"""The commit log of a pipeline, and the state that it describes. The log consists of objects in the output that record
which files are written."""
