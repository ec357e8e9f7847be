"""Reads topics from bucket and broker as one log: snapshots, windows, splits, tails. Needs ``tieredstore[arrow]``."""
