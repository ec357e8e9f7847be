"""Disk cache of chunks and indexes, which survives a restart."""
