"""Verification of buckets."""
