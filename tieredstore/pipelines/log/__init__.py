"""The commit log of a pipeline: objects in the output that record which files are written, and the state that follows
from them."""
