"""The local file system, and anything mounted into it."""

from tieredstore.backends.filesystem.store import FilesystemObjectStore

__all__ = ["FilesystemObjectStore"]
