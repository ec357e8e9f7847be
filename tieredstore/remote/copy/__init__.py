"""Copies a segment to the store: log, indexes and manifest."""
