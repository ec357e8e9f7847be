"""Fixtures for a broker's disk and for an uploader on it that never sleeps."""

from tests.support.uploader.uploader_disk import disk, soon, store

__all__ = ["disk", "soon", "store"]
