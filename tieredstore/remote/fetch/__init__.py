"""A range down: manifests, chunks, indexes, and the streams that put them in order."""
