"""Cache of chunks and indexes in a folder. It survives a restart."""
