"""Fixtures for a broker's disk and for an uploader on it that never sleeps."""

from tests.support.uploader.uploader_disk import disk, soon

__all__ = ["disk", "soon"]
