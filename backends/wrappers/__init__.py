"""Wrappers around stores: metrics and rate limits."""
