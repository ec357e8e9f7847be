"""The file system store with a failing disk, a killed process, and other processes on its root."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    PreconditionFailedError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
)

DRAFT = ".~tieredstore-"
_SYSTEM_CALLS = ("open", "mkdir", "write", "fsync", "link", "rename", "unlink", "stat", "fstat")


@pytest.fixture
def store(tmp_path: Path) -> FilesystemObjectStore:
    return FilesystemObjectStore(tmp_path)


def remove_abandoned(store: FilesystemObjectStore) -> int:
    """Remove abandoned writes; return how many were removed."""
    return sum([store.discard(write) for write in list(store.abandoned_writes())])


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


class FailingSystem:
    """Fails the ``fail_at``-th of a store's system calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int, number: int = errno.ENOSPC) -> None:
        self.calls, self._fail_at, self._number = 0, fail_at, number
        for name in _SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))
        monkeypatch.setattr(fcntl, "flock", self._failing(fcntl.flock))

    def _failing(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            self.calls += 1
            if self.calls - 1 == self._fail_at:
                raise OSError(self._number, os.strerror(self._number))
            return real(*args, **named)

        return call


def calls_of(work: Callable[[], object]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        system = FailingSystem(patch, -1)
        work()
        return system.calls


def open_descriptors() -> int:
    """Count descriptors of files and folders. Leave out sockets and pipes, because other tests may still have some."""
    links: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(str(descriptor.readlink()))
    return sum(link.startswith("/") and not link.startswith(("/dev/", "/proc/")) for link in links)


def fail_each_call(work: Callable[[], object], total: int) -> Iterator[TieredStoreError | None]:
    """Run ``work`` once for each system call, which fails in that run; yield the error of each run."""
    for number in range(total):
        before = open_descriptors()
        with pytest.MonkeyPatch.context() as patch:
            FailingSystem(patch, number)
            try:
                work()
            except TieredStoreError as error:
                outcome: TieredStoreError | None = error
            else:
                outcome = None
        assert open_descriptors() == before
        yield outcome


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_full_disk_at_any_step_of_a_put_leaves_the_whole_object_or_none(
    store: FilesystemObjectStore, tmp_path: Path, if_absent: bool
) -> None:
    def put() -> None:
        store.put("a/b/object", iter([b"new ", b"data"]), if_absent=if_absent)

    total = calls_of(put)
    store.delete(["a/b/object"])
    failures = 0
    for outcome in fail_each_call(put, total):
        failures += outcome is not None
        assert isinstance(outcome, StoreError | None)
        stayed = files_below(tmp_path)
        # If a call fails after the object has its name, the write cannot roll back. It raises an error, but the object
        # is whole.
        assert stayed in ([], ["a/b/object"])
        assert outcome is not None or stayed
        assert [store.get(key) for key in stayed] == [b"new data"] * len(stayed)
        store.delete(["a/b/object"])
    assert failures >= total - 4 > 10


def test_a_full_disk_at_any_step_of_a_replace_leaves_the_old_object_or_the_new_one(
    store: FilesystemObjectStore, tmp_path: Path
) -> None:
    store.put("a/object", b"old")
    etag = store.head("a/object").etag or ""
    total = calls_of(lambda: store.replace("a/object", b"new", etag))
    store.put("a/object", b"old")
    for outcome in fail_each_call(lambda: store.replace("a/object", b"new", etag), total):
        assert isinstance(outcome, StoreError | None)
        assert files_below(tmp_path) == ["a/object"]
        assert store.get("a/object") in ((b"new",) if outcome is None else (b"old", b"new"))
        store.put("a/object", b"old")


def test_a_failure_at_any_step_of_a_delete_is_told(store: FilesystemObjectStore, tmp_path: Path) -> None:
    def delete() -> None:
        store.delete(["a/one", "a/two"])

    def put() -> None:
        store.put("a/one", b"1")
        store.put("a/two", b"2")

    put()
    total = calls_of(delete)
    failures = 0
    put()
    for outcome in fail_each_call(delete, total):
        failures += outcome is not None
        assert outcome is not None or files_below(tmp_path) == []
        put()
    assert failures >= total - 1 > 5


@pytest.mark.parametrize(("if_absent", "published"), [(False, "rename"), (True, "link")])
def test_a_put_is_durable_before_it_is_seen_and_before_it_returns(
    store: FilesystemObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, if_absent: bool, published: str
) -> None:
    steps: list[str] = []

    def noted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            where = str(Path(f"/proc/self/fd/{args[0]}").readlink()) if name == "fsync" else ""
            steps.append("sync file" if DRAFT in where else f"sync {where}" if where else name)
            return real(*args, **named)

        return call

    for name in ("fsync", "rename", "link"):
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    store.put("a/b/object", b"data", if_absent=if_absent)
    folders = [tmp_path / "a/b", tmp_path / "a", tmp_path]
    assert steps == ["sync file", published, *(f"sync {folder}" for folder in folders)]
    steps.clear()
    store.replace("a/b/object", b"new", store.head("a/b/object").etag or "")
    assert steps == ["sync file", "rename", *(f"sync {folder}" for folder in folders)]
    steps.clear()
    store.put_once("a/b/object", b"new", "0" * 32)  # the writer may have been killed before its own sync
    assert steps == [f"sync {folder}" for folder in folders]
    steps.clear()
    store.delete(["a/b/object"])
    assert steps == [f"sync {tmp_path / 'a/b'}"]


def test_a_refused_write_stays_refused_if_its_sync_fails(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store.put("a/object", b"data")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PreconditionFailedError):
        store.put("a/object", b"new", if_absent=True)
    assert store.get("a/object") == b"data"


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, StoreError, "the disk is full"),
        (errno.EDQUOT, StoreError, "quota"),
        (errno.EIO, StoreError, "input/output error"),
        (errno.EFBIG, StoreError, "File too large"),
        (errno.EROFS, AccessDeniedError, "Read-only file system"),
        (errno.EACCES, AccessDeniedError, "Permission denied"),
        (errno.ESTALE, StoreUnavailableError, "Stale file handle"),
        (errno.ETIMEDOUT, StoreUnavailableError, "timed out"),
        (errno.EMFILE, StoreUnavailableError, "Too many open files"),
    ],
)
def test_a_failing_write_says_what_happened_and_whether_to_retry(
    store: FilesystemObjectStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError], said: str
) -> None:
    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(kind, match=said) as caught:
        store.put("folder/object", b"data")
    assert type(caught.value) is kind
    assert "folder/object" in str(caught.value)
    assert caught.value.retryable == (kind is StoreUnavailableError)
    assert list(store.list()) == []


def test_a_file_over_the_process_s_limit_leaves_nothing(store: FilesystemObjectStore, tmp_path: Path) -> None:
    script = """
import resource, sys
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = FilesystemObjectStore(sys.argv[1])
store.put("small", bytes(1000))
try:
    store.put("large", iter([bytes(60_000)] * 3))
except StoreError as error:
    print(error)
"""
    with running(script, str(tmp_path)) as process:
        output, _ = process.communicate(timeout=60)
    assert "File too large" in output
    assert files_below(tmp_path) == ["small"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_if_absent_holds_on_a_file_system_without_hard_links(
    store: FilesystemObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", failing)
    store.put("object", b"first", if_absent=True)
    with pytest.raises(PreconditionFailedError):
        store.put("object", b"second", if_absent=True)
    assert files_below(tmp_path) == ["object"]
    assert store.get("object") == b"first"


def test_if_absent_loses_to_a_writer_that_knows_no_locks(store: FilesystemObjectStore, tmp_path: Path) -> None:
    real = os.link

    def overtaken(source: bytes, target: bytes, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        (tmp_path / "object").write_bytes(b"foreign")
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", overtaken)
        with pytest.raises(PreconditionFailedError):
            store.put("object", b"ours", if_absent=True)
    assert store.get("object") == b"foreign"
    assert files_below(tmp_path) == ["object"]


def test_a_put_whose_folder_is_removed_at_once_makes_it_again(
    store: FilesystemObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = fcntl.flock, list[Path]()

    def removing(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and len(removed) < 3 and not files_below(tmp_path):
            (tmp_path / "a/b").rmdir()
            (tmp_path / "a").rmdir()
            removed.append(tmp_path / "a")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    store.put("a/b/object", b"data")
    assert len(removed) == 3
    assert store.get("a/b/object") == b"data"


@contextmanager
def running(script: str, *args: str) -> Generator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script, *args]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


_PAUSED_PUT = """
import signal, sys
from tieredstore.backends.filesystem.store import FilesystemObjectStore
def body():
    yield b"half"
    print("half is written", flush=True)
    signal.pause()
FilesystemObjectStore(sys.argv[1]).put("a/b/object", body())
"""


def test_a_killed_put_leaves_nothing_to_see_and_its_file_can_be_removed(
    store: FilesystemObjectStore, tmp_path: Path
) -> None:
    with running(_PAUSED_PUT, str(tmp_path)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(files_below(tmp_path)) == 1
        assert list(store.list()) == []
        assert remove_abandoned(store) == 0, "its writer lives"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert list(store.list()) == []
    assert len(files_below(tmp_path)) == 1
    assert remove_abandoned(store) == 1
    assert list(tmp_path.iterdir()) == []


def test_unfinished_writes_in_a_folder_that_cannot_be_read_are_not_passed_over(
    store: FilesystemObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", broken)
        with pytest.raises(StoreError, match="input/output error"):
            list(store.abandoned_writes())
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError, match="is gone"):
        list(store.abandoned_writes())


def test_the_files_of_a_writer_on_another_thread_are_not_removed(store: FilesystemObjectStore, tmp_path: Path) -> None:
    taken, go_on = threading.Event(), threading.Event()

    def body() -> Iterator[bytes]:
        yield b"first "
        taken.set()
        go_on.wait(60)
        yield b"second"

    writer = threading.Thread(target=store.put, args=("a/object", body()))
    writer.start()
    assert taken.wait(60)
    assert remove_abandoned(store) == 0
    go_on.set()
    writer.join()
    assert store.get("a/object") == b"first second"
    assert files_below(tmp_path) == ["a/object"]


_ENDLESS_PUTS = """
import itertools, sys
from tieredstore.backends.filesystem.store import FilesystemObjectStore
store = FilesystemObjectStore(sys.argv[1])
for number in itertools.count():
    store.put("a/object", iter([b"%08d" % number] * 10_000))
    store.put("a/%d" % number, iter([b"%08d" % number] * 10_000), if_absent=True)
    store.delete(["a/%d" % number])
    if number == 0:
        print("started", flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_whole_objects(store: FilesystemObjectStore, tmp_path: Path) -> None:
    source = random.Random(9)
    for _ in range(8):
        with running(_ENDLESS_PUTS, str(tmp_path)) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(source.uniform(0, 0.03))
            process.kill()
            process.wait(timeout=60)
        for info in store.list():
            content = store.get(info.key)
            assert content == content[:8] * 10_000
        remove_abandoned(store)
        store.delete(info.key for info in store.list())
        assert files_below(tmp_path) == []


_RACER = """
import json, sys, time
from pathlib import Path
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import PreconditionFailedError
root, name = sys.argv[1:]
store, won = FilesystemObjectStore(root), []
print("ready", flush=True)
while not (Path(root) / "go").exists():
    time.sleep(0.001)
for number in range(100):
    try:
        store.put(f"race/{number}", name.encode(), if_absent=True)
        won.append(number)
    except PreconditionFailedError:
        pass
    while True:
        info = store.head("counter")
        try:
            store.replace("counter", b"%d" % (int(store.get("counter")) + 1), info.etag)
            break
        except PreconditionFailedError:
            pass
print(json.dumps(won))
"""


def test_of_two_processes_that_race_one_wins_and_no_update_is_lost(
    store: FilesystemObjectStore, tmp_path: Path
) -> None:
    store.put("counter", b"0")
    with running(_RACER, str(tmp_path), "one") as one, running(_RACER, str(tmp_path), "two") as two:
        for process in (one, two):
            assert process.stdout is not None
            process.stdout.readline()
        store.put("go", b"")
        won = {"one": json.loads(one.communicate(timeout=60)[0]), "two": json.loads(two.communicate(timeout=60)[0])}
    assert sorted(won["one"] + won["two"]) == list(range(100))
    for name, numbers in won.items():
        assert {store.get(f"race/{number}") for number in numbers} <= {name.encode()}
    assert store.get("counter") == b"200"
