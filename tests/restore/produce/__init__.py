"""Restores into a running cluster."""
