"""Handling of arguments that all stores share: keys, ranges, bodies, URLs, failed deletions."""
