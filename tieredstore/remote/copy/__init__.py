"""A segment up: log, indexes, manifest, and the keys that one attempt has written."""
