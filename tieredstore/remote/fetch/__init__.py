"""Fetches ranges of segments: manifests, chunks, indexes, and streams over chunks."""
