"""A range down: manifests, chunks, indexes, and the streams that order them."""
