"""A broker's disk, and an uploader beside it that does not wait."""

from tests.support.uploader.uploader_disk import disk, soon, store

__all__ = ["disk", "soon", "store"]
