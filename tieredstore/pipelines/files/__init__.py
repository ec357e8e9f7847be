"""Contents of files: formats, their writers and readers, and streaming into the store."""
