"""Chunks and indexes in a folder that survives a restart."""
