"""Cache of chunks and indexes in a folder, which survives a restart."""
