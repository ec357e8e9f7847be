"""The local file system, and what is mounted into it."""

from tieredstore.backends.filesystem.store import FilesystemObjectStore

__all__ = ["FilesystemObjectStore"]
