"""A broker's disk, and an uploader beside it that does not wait."""

from tests.support.uploader.uploader_disk import disk, soon

__all__ = ["disk", "soon"]
