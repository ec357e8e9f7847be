"""The local file system, and file systems mounted into it."""

from tieredstore.backends.filesystem.store import FilesystemObjectStore

__all__ = ["FilesystemObjectStore"]
