"""Maintenance of an output: backfills, deletion, verification."""
