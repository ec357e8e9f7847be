"""Fixture for a broker's disk."""

from tests.support.uploader.uploader_disk import disk

__all__ = ["disk"]
