"""Offsets of consumer groups, translated by the map of a run of ``restore produce``."""
