"""A segment up: log, indexes, manifest, and what one attempt has written."""
