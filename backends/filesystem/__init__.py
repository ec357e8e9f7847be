"""A folder as an object store."""
