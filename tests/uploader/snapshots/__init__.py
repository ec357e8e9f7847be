"""Hourly snapshots of the cluster."""
