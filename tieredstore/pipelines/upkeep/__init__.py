"""Maintenance of an output: backfills, dropping, verification."""
