"""Objects as files below a folder: a key is a path, as in the Java plugin's file system storage.

A write creates a hidden file in the object's folder and syncs it to disk. Then it links or renames the file to the
object's name. The writer holds a lock on the folder while it checks the condition and links or renames the file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import AbandonedWrite, Body, ObjectInfo, ObjectStore, Prepared, StoreAdmin
from tieredstore.backends.contract import staging
from tieredstore.backends.contract.bodies import Digest, closing_body, open_body
from tieredstore.backends.contract.checks import is_empty_request, raise_failures, resolved_range
from tieredstore.backends.filesystem._files import look_at_files, names_of_files, read_files
from tieredstore.backends.filesystem.drafts import (
    Draft,
    abandoned_drafts,
    draft_path,
    publish_prepared,
    remove_abandoned,
)
from tieredstore.backends.filesystem.errors import OsErrors
from tieredstore.backends.filesystem.folders import DRAFT_MARK, Folder, KeyPath, is_component, is_on_nfs
from tieredstore.errors import (
    ConfigError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    StoreUnavailableError,
    TieredStoreError,
    redact,
)

if TYPE_CHECKING:
    from tieredstore.config import Settings

_DIGEST_PIECE: Final = 1 << 20
_DELETE_BATCH: Final = 1000
_ATTEMPTS: Final = 100
_SMALL_BATCH: Final = 256
_CLOCK: Final = "clock"
"""Name for a draft (unfinished file) that is created only to read the file system's clock. It never becomes an object.
"""


class FilesystemObjectStore(ObjectStore, StoreAdmin):
    """Objects as files below ``root``, an existing folder; several processes may use it at once.

    Reads write nothing, so a read-only root works. The etag of an object is the SHA-256 of its content. ``head`` and
    ``replace`` read the whole object to compute it; listings have no etags.

    The file system must support ``flock``. Symbolic links below the root are not followed: a key whose path contains
    such a link raises InvalidKeyError. The store is picklable, because it keeps nothing open between two calls.
    """

    def __init__(self, root: Path | str) -> None:
        """Make the store; raise ConfigError if ``root`` is not an existing folder."""
        path = Path(root)
        if not path.is_dir():
            raise ConfigError(
                f"the store's root {redact(root)!r} is not an existing folder; create it, or name another one"
            )
        self._root = str(path.resolve())

    @classmethod
    def from_settings(cls, settings: Settings) -> FilesystemObjectStore:
        """Make the store from ``storage.root``."""
        if settings.storage_root is None:
            raise ConfigError("storage.root is not set; the file system store needs it: an existing folder")
        return cls(settings.storage_root)

    @property
    def identity(self) -> str:
        """The root as a ``file:`` URL, with links resolved."""
        return Path(self._root).as_uri()

    @property
    def conditional_writes(self) -> bool:
        """False on NFS: two mounts may have separate locks. Also, if the client repeats a link request, the second
        request may fail although the first one succeeded.
        """
        return not is_on_nfs(self._root)

    def __repr__(self) -> str:
        return f"FilesystemObjectStore({self._root!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the file. Before returning, sync the file and its folders up to the root to disk."""
        with open_body(body) as parts, self._new_draft(key) as draft:
            check = partial(self._require_free, draft.folder, key, if_absent=if_absent)
            try:
                with self._writing(key):
                    # If the key is taken, fail before the body is consumed. The check is repeated below under the lock,
                    # because another writer may have just taken the key.
                    check()
                self._fill(draft, key, parts)
                self._place(draft, key, check, if_absent=if_absent)
            except PreconditionFailedError:
                # Sync, because the writer that took the key may have been killed before its own sync. If this fails,
                # still raise the refusal: after another error, callers delete the object as if they had written it.
                with suppress(TieredStoreError), self._writing(key):
                    draft.folder.sync()
                raise

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read the range. If the file is replaced during the read, the result is the old bytes.

        Raise RangeNotSatisfiableError for a range outside of the file, or if the file is truncated during the read.
        """
        path = KeyPath.of(key)
        if is_empty_request(start, stop):
            return b""
        with self._open(key, path) as (descriptor, size):
            wanted = resolved_range(key, size, start, stop)
            return _read_range(descriptor, key, wanted.start, len(wanted))

    def get_small(self, key: str, most: int) -> bytes | None:
        """Read the file as ``get`` does, unless it is larger than ``most``."""
        path = KeyPath.of(key)
        with OsErrors(self._root, key), Folder(self._root, path.folders) as folder:
            return _read_small(folder, key, path.name, most)

    @property
    def small_batch(self) -> int:
        """The batch size is above 1, because reading a file takes less time than starting a thread. On a slow mount
        several threads, each with a batch, still help.
        """
        return _SMALL_BATCH

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read many files; open a folder once for adjacent keys in it."""
        answers: list[bytes | TieredStoreError | None] = []
        for _, group in groupby(keys, key=_folder_of):
            while in_folder := list(islice(group, _SMALL_BATCH)):
                answers += self._get_small_in(in_folder, most)
        return answers

    def _get_small_in(self, keys: list[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read files of one folder, as ``get_small_batch`` does."""
        try:
            with OsErrors(self._root, keys[0]), Folder(self._root, KeyPath.of(keys[0]).folders) as folder:
                read = read_files(folder.descriptor, keys[0].rfind("/") + 1, keys, most)
                return [
                    self._get_small_from(folder, key, most) if content is None else content
                    for key, content in zip(keys, read, strict=True)
                ]
        except TieredStoreError:
            # The folder cannot be opened, so read the keys one by one to get each key's own error.
            return super().get_small_batch(keys, most)

    def _get_small_from(self, folder: Folder, key: str, most: int) -> bytes | TieredStoreError | None:
        try:
            path = KeyPath.of(key)
            with OsErrors(self._root, key):
                return _read_small(folder, key, path.name, most)
        except TieredStoreError as error:
            return error

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Read as ``get`` does, straight into ``buffer``, which must be contiguous."""
        path = KeyPath.of(key)
        with memoryview(buffer).cast("B") as view:
            stop = start + len(view)
            if is_empty_request(start, stop):
                return
            with self._open(key, path) as (descriptor, size):
                resolved_range(key, size, start, stop)
                _read_into(descriptor, key, start, view)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List files; open only folders that may contain a match. No descriptor stays open between two objects."""
        return iter(Listing(self._root, prefix, start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, and folders that become empty, except the root."""
        failures: list[TieredStoreError] = []
        rest = iter(keys)
        while batch := list(islice(rest, _DELETE_BATCH)):
            failures += _delete_batch(self._root, batch)
        raise_failures(failures)

    def head(self, key: str) -> ObjectInfo:
        """Return size and etag. Read the whole file to compute the etag, which listings lack."""
        with self._open(key, KeyPath.of(key)) as (descriptor, _):
            status = os.fstat(descriptor)
            size, etag = _digest(descriptor)
            return ObjectInfo(key, size, etag, status.st_mtime_ns // 1_000_000)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Replace the file. A replacement by equal bytes keeps the etag, so another writer that holds the same etag
        succeeds too.
        """
        digest = Digest()
        with closing_body(body), open_body(digest.of(body)) as parts:
            try:
                with OsErrors(self._root, key):
                    draft = Draft(self._root, KeyPath.of(key), create_folders=False)
            except ObjectNotFoundError as error:
                raise PreconditionFailedError(f"the object {key!r} is gone, so it was not replaced") from error
            with draft:
                self._fill(draft, key, parts)
                self._place(draft, key, partial(self._require_etag, key, etag))
        return digest.sha256

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:  # noqa: ARG002  drafts need no prefix
        """Write a draft (unfinished file) in the object's folder, synced to disk."""
        digest = Digest()
        with closing_body(body), open_body(digest.of(body)) as parts, self._new_draft(key) as draft:
            self._fill(draft, key, parts)
            with self._writing(key):
                place = draft.keep()
        return Prepared(key, digest.size, digest.sha256, place)

    def publish(self, prepared: Prepared) -> None:
        """Link the draft (unfinished file) to its key. If the key already has an object, read that object to compare
        its digest.
        """
        if publish_prepared(self._root, prepared):
            return
        what = f"{prepared.key!r} of {self.identity}"
        try:
            standing = self.head(prepared.key)
        except ObjectNotFoundError as error:
            raise staging.gone_error(what) from error
        if (standing.size, standing.etag) != (prepared.size, prepared.sha256):
            raise staging.conflict_error(what)
        self.discard(prepared)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Yield the drafts (unfinished files) of killed writers, and drafts that were prepared but never published. A
        live writer, in any process, holds a lock on its draft; locked drafts are skipped.

        ``key`` is the path of the draft, because the key of its future object is not recorded. ``started_ms`` is the
        time of the last write.
        """
        return self._find_abandoned((), "", prefix)

    def _find_abandoned(self, folders: tuple[bytes, ...], below: str, prefix: str) -> Iterator[AbandonedWrite]:
        drafts: dict[bytes, os.stat_result] = {}
        names: list[str] = []
        with (
            OsErrors(self._root, below, writing=True),
            suppress(FileNotFoundError),
            Folder(self._root, folders) as folder,
        ):
            # The random name of a draft (unfinished file) does not show its key. So yield all drafts of a folder in
            # which keys may start with ``prefix``.
            if below.startswith(prefix) or "/" not in prefix[len(below) :]:
                drafts = abandoned_drafts(folder)
            with os.scandir(folder.descriptor) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for draft, status in drafts.items():
            path = below + os.fsdecode(draft)
            yield AbandonedWrite(path, status.st_size, status.st_mtime_ns // 1_000_000, path)
        for name in names:
            if _may_hold(f"{below}{name}/", prefix):
                yield from self._find_abandoned((*folders, os.fsencode(name)), f"{below}{name}/", prefix)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Remove the draft (unfinished file) of a dead writer, and folders that become empty. This is safe at any time,
        because a live writer's draft stays.
        """
        place = draft_path(write) if isinstance(write, Prepared) else write.id
        *folders, name = os.fsencode(place).split(b"/")
        if not name.startswith(DRAFT_MARK) or not all(map(is_component, folders)):
            raise InvalidKeyError(f"{place!r} is not the name of an abandoned write of {self.identity}")
        with OsErrors(self._root, place, writing=True), suppress(FileNotFoundError):
            with Folder(self._root, tuple(folders)) as folder:
                if not remove_abandoned(folder, name):
                    return False
                folder.prune()
            return True
        return False

    def now_ms(self) -> int:
        """Create a file and return the time that the file system gives it. On a network file system this is the
        server's time.

        The root must be writable; raise AccessDeniedError otherwise.
        """
        with self._new_draft(_CLOCK) as draft, self._writing(_CLOCK):
            return draft.modified_ms()

    def kept_after_delete(self) -> Sequence[str]:
        """Return an empty sequence, because a folder keeps no deleted files."""
        return ()

    def rules_on(self, prefix: str) -> Sequence[str]:  # noqa: ARG002
        """Return an empty sequence, because a folder has no lifecycle rules."""
        return ()

    def lifecycle(self) -> str:
        """Return a sentence that says that a folder has no lifecycle rules."""
        return (
            f"{self.identity} is a folder, which has no lifecycle rules: gc removes the unfinished writes of killed "
            "writers"
        )

    def caller(self) -> str:
        """Return user id and group id of this process; a file server may map them to others."""
        return f"user {os.geteuid()}, group {os.getegid()}"

    def _writing(self, key: str) -> OsErrors:
        return OsErrors(self._root, key, writing=True)

    def _fill(self, draft: Draft, key: str, parts: Iterable[memoryview]) -> None:
        """Write the parts, and sync them to disk. Errors of the body pass through."""
        for part in parts:
            with self._writing(key):
                draft.write(part)
        with self._writing(key):
            draft.sync()

    def _place(self, draft: Draft, key: str, check: Callable[[], None], *, if_absent: bool = False) -> None:
        """Call ``check`` under the folder's lock and, unless it raises an error, publish the draft."""
        with self._writing(key):
            with draft.folder.lock():
                check()
                draft.publish(if_absent=if_absent)
            draft.folder.sync()

    def _new_draft(self, key: str) -> Draft:
        path = KeyPath.of(key)
        for _ in range(_ATTEMPTS):
            with self._writing(key), suppress(FileNotFoundError):
                # Try again, because just before the draft (unfinished file) was created, a concurrent delete may have
                # removed the empty folder.
                return Draft(self._root, path, create_folders=True)
        raise StoreUnavailableError(f"cannot change {key!r} in {self._root}: its folder is removed repeatedly")

    def _require_free(self, folder: Folder, key: str, *, if_absent: bool) -> None:
        if folder.has_file(KeyPath.of(key).name) and if_absent:
            raise PreconditionFailedError(f"the object {key!r} exists already")

    def _require_etag(self, key: str, etag: str) -> None:
        try:
            current = self.head(key).etag
        except ObjectNotFoundError as error:
            raise PreconditionFailedError(f"the object {key!r} is gone, so it was not replaced") from error
        if current != etag:
            raise PreconditionFailedError(f"the object {key!r} has the etag {current} now, not {etag}")

    @contextmanager
    def _open(self, key: str, path: KeyPath) -> Generator[tuple[int, int]]:
        """Open a file for reading; yield descriptor and size. Do not run callers' code in the block."""
        with OsErrors(self._root, key):
            with Folder(self._root, path.folders) as folder:
                descriptor, size = folder.open_file(path.name)
            try:
                yield descriptor, size
            finally:
                os.close(descriptor)


def _may_hold(folder: str, prefix: str) -> bool:
    """Return True if keys with ``prefix`` may be below ``folder``, which ends in a slash."""
    return folder.startswith(prefix) or prefix.startswith(folder)


def _delete_batch(root: str, keys: Sequence[str]) -> list[TieredStoreError]:
    failures: list[TieredStoreError] = []
    by_folder: dict[tuple[bytes, ...], dict[str, bytes]] = {}
    for key in keys:
        try:
            path = KeyPath.of(key)
        except InvalidKeyError as error:
            failures.append(error)
        else:
            by_folder.setdefault(path.folders, {})[key] = path.name
    for folders, names in by_folder.items():
        failures += _delete_in(root, folders, names)
    return failures


def _delete_in(root: str, folders: tuple[bytes, ...], names: Mapping[str, bytes]) -> list[TieredStoreError]:
    """Delete files of one folder. Take the folder's lock once for all files, release it, then sync the folder once."""
    try:
        with OsErrors(root, next(iter(names))), Folder(root, folders) as folder:
            with folder.lock():
                failures = [error for key, name in names.items() if (error := _unlink(root, folder, key, name))]
            if len(failures) < len(names):
                os.fsync(folder.descriptor)
            with folder.lock():
                folder.prune()
            return failures
    except ObjectNotFoundError:
        return []
    except TieredStoreError as error:
        return [error] * len(names)


def _unlink(root: str, folder: Folder, key: str, name: bytes) -> TieredStoreError | None:
    try:
        with OsErrors(root, key, writing=True), suppress(IsADirectoryError, FileNotFoundError):
            if folder.has_file(name):
                os.unlink(name, dir_fd=folder.descriptor)
    except TieredStoreError as error:
        return error
    return None


def _folder_of(key: str) -> str:
    return key.rpartition("/")[0]


def _read_small(folder: Folder, key: str, name: bytes, most: int) -> bytes | None:
    descriptor, size = folder.open_file(name)
    try:
        return None if size > most else _read_range(descriptor, key, 0, size)
    finally:
        os.close(descriptor)


def _read_range(descriptor: int, key: str, start: int, size: int) -> bytes:
    data = os.pread(descriptor, size, start)
    if len(data) == size:
        return data
    # One pread returns at most about 2 GiB, so read a larger range by several calls.
    whole = bytearray(size)
    _read_into(descriptor, key, start, memoryview(whole))
    return bytes(whole)


def _read_into(descriptor: int, key: str, start: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], start + done)
        if count == 0:
            raise RangeNotSatisfiableError(f"{key!r} ended at byte {start + done} while it was read: it was truncated")
        done += count


def _digest(descriptor: int) -> tuple[int, str]:
    """Return size and SHA-256 of an open file, read in pieces."""
    digest, piece, size = hashlib.sha256(), memoryview(bytearray(_DIGEST_PIECE)), 0
    while count := os.preadv(descriptor, [piece], size):
        digest.update(piece[:count])
        size += count
    return size, digest.hexdigest()


_logger: Final = logging.getLogger(__name__)

_PAGE: Final = 1000
"""Number of files to examine each time a folder is opened."""


class Listing:
    """One listing of the objects whose key starts with ``prefix`` and is greater than ``start_after``.

    No descriptor stays open between two objects. Files and folders that disappear during the listing are skipped.
    """

    __slots__ = ("_prefix", "_root", "_start_after")

    def __init__(self, root: str, prefix: str, start_after: str | None) -> None:
        self._root, self._prefix, self._start_after = root, prefix, start_after or ""

    def __iter__(self) -> Iterator[ObjectInfo]:
        """Start at the deepest folder that contains every key with ``prefix``."""
        parent = self._prefix.rpartition("/")[0]
        parts = parent.split("/") if parent else []
        try:
            legal = all(is_component(part.encode("utf-8")) for part in parts)
        except UnicodeEncodeError:
            legal = False
        return self._below(parent + "/" if parent else "") if legal else iter(())

    def _below(self, path: str) -> Iterator[ObjectInfo]:
        """List the folder ``path``, which is empty or ends with a slash."""
        entries = iter(self._entries(path))
        # Read size and time of adjacent files page by page, up to the next folder.
        while page := list(islice(entries, _PAGE)):
            files = [name for name in page if name[-1] != "/"]
            infos = self._infos(path, files)
            if len(files) == len(page):
                yield from filter(None, infos)
                continue
            looked = iter(infos)
            for name in page:
                if name[-1] == "/":
                    yield from self._below(path + name)
                elif (info := next(looked)) is not None:
                    yield info

    def _entries(self, path: str) -> list[str]:
        """Return the sorted names of possible matches. A folder's name ends in a slash, so that the folder sorts like
        the keys below it.

        Example: ``a-b`` < ``a/c`` < ``a0``, although the bare name ``a`` sorts before ``a-b``. Python compares text by
        code points, which gives the same order as the UTF-8 bytes.
        """
        try:
            with OsErrors(self._root, path), self._folder(path) as folder:
                names = names_of_files(folder.descriptor)
                if names is None:
                    with os.scandir(folder.descriptor) as scan:
                        names = [name for entry in scan if (name := _name_of(entry, path)) is not None]
        except ObjectNotFoundError:
            return []
        if not (path.startswith(self._prefix) and self._start_after <= path):
            names = [name for name in names if self._may_match(path + name)]
        names.sort()
        return names

    def _may_match(self, key: str) -> bool:
        if key.endswith("/"):
            return _may_hold(key, self._prefix) and key >= self._start_after[: len(key)]
        return key.startswith(self._prefix) and key > self._start_after

    def _infos(self, path: str, names: list[str]) -> list[ObjectInfo | None]:
        """Return size and time for each name, in the given order; None for a file that no longer exists."""
        if not names:
            return []
        try:
            with OsErrors(self._root, path), self._folder(path) as folder:
                looked = look_at_files(folder.descriptor, path, names)
                return [_info(folder, path, name) for name in names] if looked is None else looked
        except ObjectNotFoundError:
            return [None] * len(names)

    def _folder(self, path: str) -> Folder:
        return Folder(self._root, tuple(path.encode("utf-8").split(b"/")[:-1]))


def _info(folder: Folder, path: str, name: str) -> ObjectInfo | None:
    """Return the file's size and time; None if the name is no longer a plain file. An OSError passes through."""
    try:
        status = os.stat(name.encode("utf-8"), dir_fd=folder.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):  # no longer the file that the folder's listing showed
        return None
    return ObjectInfo(path + name, status.st_size, None, status.st_mtime_ns // 1_000_000)


def _name_of(entry: os.DirEntry[str], path: str) -> str | None:
    """Return the entry's name as in keys, with a slash after a folder's name. Return None if the entry cannot be an
    object or a folder of objects.
    """
    name = entry.name
    if not name.isascii():  # the system's file name encoding may differ from that of keys
        try:
            name = os.fsencode(name).decode("utf-8")
        except UnicodeDecodeError:
            return None
    if not is_component(name.encode("utf-8")):
        return None
    if entry.is_file(follow_symlinks=False):
        return name
    if entry.is_symlink():
        _logger.warning("%s%s is a symbolic link, which is not followed: its target is not listed", path, name)
        return None
    return name + "/" if entry.is_dir(follow_symlinks=False) else None
