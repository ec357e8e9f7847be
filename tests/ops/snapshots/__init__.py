"""Snapshots of clusters."""
