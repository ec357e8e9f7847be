"""Translation of the operating system's errors into the errors of a store."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import Final

from tieredstore.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
)

# Transient errors. EIO is not included, because on a local disk it means damaged hardware. A retry does not repair
# that.
_PASSING: Final = (
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EDEADLK,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ENOMEM,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ETIMEDOUT,
)

_ALWAYS: Final[dict[int, type[TieredStoreError]]] = {
    **dict.fromkeys(_PASSING, StoreUnavailableError),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), AccessDeniedError),
    **dict.fromkeys((errno.EILSEQ, errno.ELOOP, errno.ENAMETOOLONG), InvalidKeyError),
}
_ON_READS: Final = _ALWAYS | dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR), ObjectNotFoundError)
# On a write, a missing folder means that another program has just removed it, so a retry can succeed. A file in the
# place of a folder means that the key is invalid.
_ON_WRITES: Final = _ALWAYS | {
    errno.ENOENT: StoreUnavailableError,
    errno.EEXIST: PreconditionFailedError,
    errno.ENOTDIR: InvalidKeyError,
    errno.EISDIR: InvalidKeyError,
}

_EXPLAINED: Final = {
    errno.EEXIST: "the object exists already",
    errno.ENOSPC: "the disk is full (no free space, or no free inodes)",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the disk reports an input/output error",
    errno.ELOOP: "its path contains a symbolic link or a special file; only plain files and folders are supported",
    errno.ENOTDIR: "an object already has the name of a folder in its path",
    errno.EISDIR: "a folder of other objects has its name",
}


class OsErrors:
    """A context manager that turns an OSError of its block into a StoreError about ``key``.

    For an absent path, reads and writes raise different errors. Do not run code of callers, such as the body of a
    ``put``, inside the block, because an OSError of such code is not an error of the store.
    """

    __slots__ = ("_key", "_root", "_writing")

    def __init__(self, root: str, key: str, *, writing: bool = False) -> None:
        self._root, self._key, self._writing = root, key, writing

    def __enter__(self) -> None:
        """Do nothing; the translation is in ``__exit__``."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise self._translate(error) from error

    def _translate(self, error: OSError) -> TieredStoreError:
        number = error.errno or 0
        kind = (_ON_WRITES if self._writing else _ON_READS).get(number, StoreError)
        if kind is ObjectNotFoundError:
            return ObjectNotFoundError(f"there is no object {self._key!r} in {self._root}")
        verb = "change" if self._writing else "read"
        reason = _EXPLAINED.get(number) or error.strerror or str(error)
        return kind(f"cannot {verb} {self._key!r} in {self._root}: {reason}")
