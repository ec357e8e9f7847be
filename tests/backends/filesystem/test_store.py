from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import CASES, case_path
from tests.support.open_files import open_below
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import store as files
from tieredstore.backends.filesystem._files import names_of_files
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    RangeNotSatisfiableError,
    StoreError,
)
from tieredstore.testing.object_store_tests import ObjectStoreTests


class TestFilesystemObjectStore(ObjectStoreTests):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path

    @pytest.fixture
    def store(self) -> ObjectStore:
        return FilesystemObjectStore(self.root)

    def raw_put(self, store: ObjectStore, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def raw_get(self, store: ObjectStore, key: str) -> bytes:
        return (self.root / key).read_bytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> FilesystemObjectStore:
    return FilesystemObjectStore(root)


def everything_below(folder: Path) -> dict[str, tuple[int, int, int]]:
    statuses = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (seen.st_mode, seen.st_size, seen.st_mtime_ns) for path, seen in statuses.items()}


def test_the_root_must_be_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for wrong in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(ConfigError, match=wrong.name):
            FilesystemObjectStore(wrong)
    assert not (tmp_path / "absent").exists()


def test_identity_names_the_folder_however_it_was_reached(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "link").symlink_to("a folder")
    store = FilesystemObjectStore(tmp_path / "link")
    assert store.identity == FilesystemObjectStore(str(tmp_path / "a folder" / ".")).identity
    assert store.identity == (tmp_path / "a folder").as_uri()


def test_a_lost_root_is_not_an_absent_object(store: FilesystemObjectStore, root: Path) -> None:
    store.put("object", b"data")
    again = pickle.loads(pickle.dumps(store))
    shutil.rmtree(root)
    for lost in (store, again):
        for operation in (
            lambda s=lost: s.get("object"),
            lambda s=lost: s.head("object"),
            lambda s=lost: list(s.list()),
            lambda s=lost: s.put("object", b""),
            lambda s=lost: s.delete(["object"]),
            lambda s=lost: s.replace("object", b"", "etag"),
        ):
            with pytest.raises(StoreError, match="root folder"):
                operation()
    assert not root.exists()


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_the_java_plugin_wrote_is_read_as_it_is(case: str) -> None:
    folder = case_path(case) / "store"
    before = everything_below(folder)
    store = FilesystemObjectStore(folder)
    listed = [info.key for info in store.list()]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert listed == sorted(files)
    assert {key: store.get(key) for key in listed} == files
    assert everything_below(folder) == before


def test_keys_are_paths_below_the_root_with_ordinary_permissions(store: FilesystemObjectStore, root: Path) -> None:
    mask = os.umask(0o027)
    try:
        store.put("topic/0/object.log", b"data")
    finally:
        os.umask(mask)
    assert (root / "topic/0/object.log").read_bytes() == b"data"
    assert (root / "topic/0/object.log").stat().st_mode & 0o777 == 0o640
    assert (root / "topic/0").stat().st_mode & 0o777 == 0o750


@pytest.fixture
def unprivileged_folder() -> Iterator[Path]:
    """Yield a folder with an object, owned by another user and without write permission."""
    folder = Path(tempfile.mkdtemp())
    FilesystemObjectStore(folder).put("topic/object", b"data")
    for path in (folder, folder / "topic"):
        path.chmod(0o555)
    (folder / "topic/object").chmod(0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_root_is_read_and_refuses_writes(unprivileged_folder: Path) -> None:
    store = FilesystemObjectStore(unprivileged_folder)
    before = everything_below(unprivileged_folder)
    assert [info.key for info in store.list()] == ["topic/object"]
    assert store.get("topic/object") == b"data"
    etag = store.head("topic/object").etag
    assert etag is not None
    for operation in (
        lambda: store.put("topic/object", b"new"),
        lambda: store.put("topic/other", b"new"),
        lambda: store.put("other/object", b"new"),
        lambda: store.delete(["topic/object"]),
        lambda: store.replace("topic/object", b"new", etag),
    ):
        with pytest.raises(AccessDeniedError):
            operation()
    store.delete(["topic/absent", "absent/object"])
    assert everything_below(unprivileged_folder) == before


def test_what_may_not_be_read_is_denied_not_absent(unprivileged_folder: Path) -> None:
    store = FilesystemObjectStore(unprivileged_folder)
    user = os.geteuid()
    os.seteuid(os.getuid())
    (unprivileged_folder / "topic").chmod(0o000)
    os.seteuid(user)
    for operation in (
        lambda: store.get("topic/object"),
        lambda: store.head("topic/object"),
        lambda: list(store.list()),
    ):
        with pytest.raises(AccessDeniedError, match="topic"):
            operation()


def test_delete_removes_the_folders_that_became_empty_but_not_the_root(
    store: FilesystemObjectStore, root: Path
) -> None:
    for key in ("a/b/c/1", "a/b/2", "d/3"):
        store.put(key, b"")
    store.delete(["a/b/c/1", "d/3"])
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == {"a", "a/b", "a/b/2"}
    store.delete(["a/b/2"])
    assert list(root.iterdir()) == []


def test_a_listing_opens_only_folders_that_can_match(
    store: FilesystemObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("a/1/x", "a/2/x", "b/1/x", "c/x"):
        store.put(key, b"")
    scanned: list[str] = []

    def noting(descriptor: int) -> list[str] | None:
        scanned.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)))
        return names_of_files(descriptor)

    monkeypatch.setattr(files, "names_of_files", noting)
    assert [info.key for info in store.list("a/2")] == ["a/2/x"]
    assert scanned == ["a", "a/2"]
    scanned.clear()
    assert [info.key for info in store.list("", "b/1")] == ["b/1/x", "c/x"]
    assert scanned == [".", "b", "b/1", "c"]
    scanned.clear()
    assert next(store.list()).key == "a/1/x"
    assert scanned == [".", "a", "a/1"]


def test_a_paused_listing_holds_no_descriptor(store: FilesystemObjectStore, root: Path) -> None:
    for number in range(5):
        store.put(f"a/{number}", b"")
    before = open_below(root)
    listing = store.list()
    assert [info.key for info in islice(listing, 2)] == ["a/0", "a/1"]
    assert open_below(root) == before
    assert [info.key for info in listing] == ["a/2", "a/3", "a/4"]


_COMPONENT = st.text(alphabet=st.sampled_from("ab-.0~é\uffee😀"), min_size=1, max_size=3).filter(
    lambda name: name not in (".", "..")
)
_KEY = st.lists(_COMPONENT, min_size=1, max_size=4).map("/".join)


def without_folders(keys: set[str]) -> list[str]:
    return [key for key in keys if not any(other.startswith(key + "/") for other in keys)]


@given(
    st.sets(_KEY, max_size=20).map(without_folders),
    st.one_of(st.just(""), _KEY, _KEY.map(lambda key: key + "/"), st.text(alphabet="ab/-.", max_size=4)),
    st.one_of(st.none(), _KEY, st.text(alphabet="ab/-.", max_size=4)),
)
def test_a_listing_is_the_sorted_matching_keys(keys: list[str], prefix: str, start_after: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for key in keys:
            path = Path(folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(key.encode())
        listed = list(FilesystemObjectStore(folder).list(prefix, start_after))
    expected = [key for key in keys if key.startswith(prefix) and key.encode() > (start_after or "").encode()]
    assert [info.key for info in listed] == sorted(expected, key=str.encode)
    assert [info.size for info in listed] == [len(info.key.encode()) for info in listed]


def test_an_object_cut_short_while_it_is_read_is_no_short_answer(
    store: FilesystemObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", b"0123456789")
    pread = os.pread

    def cutting(descriptor: int, count: int, at: int) -> bytes:
        os.truncate(root / "object", 4)
        return pread(descriptor, count, at)

    monkeypatch.setattr(os, "pread", cutting)
    with pytest.raises(RangeNotSatisfiableError, match="it was truncated"):
        store.get("object")


def test_reads_that_come_in_pieces_are_put_together(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", b"0123456789")
    pread, preadv = os.pread, os.preadv

    def some(descriptor: int, count: int, at: int) -> bytes:
        return pread(descriptor, min(count, 3), at)

    def some_into(descriptor: int, views: list[memoryview], at: int) -> int:
        return preadv(descriptor, [views[0][:3]], at)

    monkeypatch.setattr(os, "pread", some)
    monkeypatch.setattr(os, "preadv", some_into)
    assert store.get("object", 1, 9) == b"12345678"
    buffer = bytearray(8)
    store.get_into("object", 2, buffer)
    assert buffer == b"23456789"
    assert store.head("object").size == 10


def test_an_absent_object_of_a_damaged_disk_is_not_called_absent(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("object", b"data")

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(StoreError, match="input/output error") as caught:
        store.get("object")
    assert not isinstance(caught.value, ObjectNotFoundError)
    assert not caught.value.retryable


def test_a_failed_put_takes_the_folders_that_it_made_with_it(store: FilesystemObjectStore, root: Path) -> None:
    store.put("kept/object", b"data")

    def body() -> Iterator[bytes]:
        yield b"some"
        raise ValueError("broken off")

    for key in ("new/folder/object", "kept/new/object", "kept/other"):
        with pytest.raises(ValueError, match="broken off"):
            store.put(key, body())
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == {"kept", "kept/object"}


@contextmanager
def folder_lock(folder: Path) -> Generator[Callable[[], None]]:
    """Yield a function that takes the folder's lock and holds it to the end of the block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield lambda: fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def test_a_put_is_published_under_the_folder_s_lock(store: FilesystemObjectStore, root: Path) -> None:
    store.put("folder/object", b"old")
    taken = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with folder_lock(root / "folder") as take_lock:

            def body() -> Iterator[bytes]:
                yield b"new"
                take_lock()
                taken.set()

            writing = pool.submit(store.put, "folder/object", body())
            assert taken.wait(60)
            with pytest.raises(TimeoutError):
                writing.result(timeout=0.1)
            assert store.get("folder/object") == b"old"
        writing.result(timeout=60)
    assert store.get("folder/object") == b"new"


def test_a_delete_waits_for_the_folder_s_lock(store: FilesystemObjectStore, root: Path) -> None:
    store.put("folder/object", b"old")
    with ThreadPoolExecutor(1) as pool:
        with folder_lock(root / "folder") as take_lock:
            take_lock()
            deleting = pool.submit(store.delete, ["folder/object"])
            with pytest.raises(TimeoutError):
                deleting.result(timeout=0.1)
            assert store.get("folder/object") == b"old"
        deleting.result(timeout=60)
    assert list(store.list()) == []
