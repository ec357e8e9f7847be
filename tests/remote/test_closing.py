"""A manager closed in any state while in use: each use ends at once with the same error, and logs nothing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.records.small_segments import memory_settings, new_metadata, write_segment
from tests.support.stores.closing_states import COPIES, LOG, OTHERS, READS, SILENT_S, Scene, Use, waiting
from tests.support.waiting import is_within, wait_until
from tieredstore.backends.base import find_abandoned_writes
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AlreadyClosedError
from tieredstore.model import IndexType
from tieredstore.process.futures import is_done, outcome
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote import manager as manager_module

pytestmark = pytest.mark.slow

AT_ONCE_S = 120.0
"""Closing takes a second on an idle machine. If it hung, it would last until the silent store answers: SILENT_S."""


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # In most of these tests, the store is silent for all of this time. It is no user's choice, so it is a constant.
    monkeypatch.setattr(manager_module, "_REST_S", 0.1)
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def close_during(scene: Scene, use: Use) -> None:
    with waiting(scene, use) as under_way:
        begun = time.monotonic()
        scene.manager.close()
        assert time.monotonic() - begun < manager_module.CLOSE_S + AT_ONCE_S
        under_way.end()
        assert under_way.ended_at - begun < AT_ONCE_S
        assert type(under_way.error) is AlreadyClosedError, repr(under_way.error)
        assert "remote storage manager was closed" in str(under_way.error)


@pytest.mark.parametrize("cache", ["", "memory", "disk"])
@pytest.mark.parametrize("mode", ["none", "zstd+enc"])
@pytest.mark.parametrize("state", READS)
def test_a_read_that_waits_ends_when_the_manager_is_closed(tmp_path: Path, state: str, mode: str, cache: str) -> None:
    if state == "load_of_another_reader" and not cache:
        pytest.skip("without a cache no load is shared")
    close_during(Scene(tmp_path, cache=cache, mode=mode), READS[state])


@pytest.mark.parametrize("state", OTHERS)
def test_what_else_waits_ends_too(tmp_path: Path, state: str) -> None:
    close_during(Scene(tmp_path), OTHERS[state])


@pytest.mark.parametrize("mode", ["none", "zstd+enc"])
@pytest.mark.parametrize("state", COPIES)
def test_a_copy_ends_and_leaves_nothing(tmp_path: Path, state: str, mode: str) -> None:
    scene = Scene(tmp_path, mode=mode)
    before = [info.key for info in scene.store.inner.list()]
    close_during(scene, COPIES[state])
    # The copy's thread continues when the store answers again, and rolls back.
    wait_until(lambda: [info.key for info in scene.store.inner.list()] == before)


def uses(scene: Scene) -> dict[str, Callable[[], object]]:
    """Return all calls of a manager, and those of streams and iterators that were opened before."""
    manager, metadata = scene.manager, scene.metadata
    stream, half_read = manager.open(metadata), manager.open(metadata)
    half_read.read(1500)
    chunks, listed = manager.open(metadata).chunks(), manager.store.list()
    next(chunks)
    next(listed)
    store = manager.store
    return {
        "open": lambda: manager.open(metadata),
        "fetch": lambda: manager.fetch_log_segment(metadata, 0),
        "manifest": lambda: manager.fetch_manifest(metadata),
        "index": lambda: manager.fetch_index(metadata, IndexType.OFFSET),
        "empty index": lambda: manager.fetch_index(metadata, IndexType.TIMESTAMP),
        "indexes": lambda: manager.fetch_all_indexes(metadata),
        "copy": lambda: manager.copy_log_segment_data(new_metadata(len(LOG)), scene.data),
        "delete": lambda: manager.delete_log_segment_data(metadata),
        "check": manager.check_open,
        "read": lambda: stream.read(1),
        "read on": lambda: half_read.read(1),
        "readinto": lambda: half_read.readinto(bytearray(10)),
        "read all": half_read.read,
        "chunks": lambda: next(chunks),
        "list on": lambda: next(listed),
        "list": lambda: list(store.list()),
        "get": lambda: store.get("x"),
        "get_small": lambda: store.get_small("x", 1),
        "get_small_batch": lambda: store.get_small_batch(["x"], 1),
        "get_into": lambda: store.get_into("x", 0, bytearray(1)),
        "put": lambda: store.put("x", b"x"),
        "put stream": lambda: store.put("x", iter([b"x"])),
        "replace": lambda: store.replace("x", b"x", "etag"),
        "store delete": lambda: store.delete(["x"]),
        "head": lambda: store.head("x"),
        "abandoned": lambda: list(find_abandoned_writes(store)),
    }


@pytest.mark.parametrize("cache", ["", "memory", "disk"])
def test_a_closed_manager_serves_nothing_any_more_whatever_is_cached(tmp_path: Path, cache: str) -> None:
    scene = Scene(tmp_path, cache=cache)
    scene.manager.open(scene.metadata).read()
    asked = uses(scene)
    scene.manager.close()
    scene.manager.close()
    before = len(scene.store.operations)
    for use in asked.values():
        with pytest.raises(AlreadyClosedError, match="remote storage manager was closed"):
            use()
    assert scene.store.operations[before:] == []
    scene.store.put("x", b"the store is its owner's still")


def test_closing_from_several_threads_closes_once(tmp_path: Path) -> None:
    closed: list[str] = []
    begun = threading.Semaphore(0)

    class Noted(MemoryObjectStore):
        def close(self) -> None:
            closed.append("store")
            for _ in range(8):
                assert begun.acquire(timeout=AT_ONCE_S)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(manager_module, "open_places", lambda _: Noted())
        manager = RemoteStorageManager(memory_settings())

    def close() -> None:
        begun.release()
        manager.close()

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(AT_ONCE_S)
    assert closed == ["store"]


def test_a_store_that_does_not_close_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    class Stuck(MemoryObjectStore):
        def close(self) -> None:
            assert answers.wait(SILENT_S)

    monkeypatch.setattr(manager_module, "open_places", lambda _: Stuck())
    monkeypatch.setattr(manager_module, "CLOSE_S", 0.2)
    manager = RemoteStorageManager(memory_settings())
    begun = time.monotonic()
    manager.close()
    manager.close()
    assert 0.2 < time.monotonic() - begun < AT_ONCE_S
    answers.set()


def test_what_goes_wrong_when_a_manager_is_closed_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryObjectStore):
        def close(self) -> None:
            raise OSError("no")

    monkeypatch.setattr(manager_module, "open_places", lambda _: Broken())
    manager = RemoteStorageManager(memory_settings())
    with pytest.raises(OSError, match="no"):
        manager.close()


def test_a_signals_handler_may_close_what_the_main_thread_reads(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.fall_silent("get_into")

    def interrupt() -> None:
        assert scene.is_asked.wait(AT_ONCE_S)
        wait_until(lambda: is_within(threading.main_thread(), outcome))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: scene.manager.close())
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(AlreadyClosedError):
            scene.manager.open(scene.metadata).read(10)
    finally:
        signal.signal(signal.SIGUSR1, before)
        scene.answers.set()


def test_a_signals_handler_may_close_at_any_moment(tmp_path: Path) -> None:
    """A handler may close the manager even while the main thread has a lock. Signals arrive at random moments of the
    thread's reads.
    """
    settings = memory_settings(100, cache={"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "-1"})
    data = write_segment(tmp_path, LOG)
    before = signal.getsignal(signal.SIGALRM)
    store = MemoryObjectStore()

    def copy_and_read(manager: RemoteStorageManager) -> None:
        while True:
            metadata = new_metadata(len(LOG))
            manager.copy_log_segment_data(metadata, data)
            assert manager.open(metadata).read() == LOG
            assert manager.open(metadata).read() == LOG

    try:
        for attempt in range(12):
            manager = RemoteStorageManager(settings, store=store)
            signal.signal(signal.SIGALRM, lambda *_, closing=manager: closing.close())
            signal.setitimer(signal.ITIMER_REAL, 0.002 + attempt * 0.0023)
            with pytest.raises(AlreadyClosedError):
                copy_and_read(manager)
            manager.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_read_that_ended_early_logs_nothing_when_the_manager_is_closed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    following = scene.copied()
    for _ in range(20):
        manager = RemoteStorageManager(scene.manager.settings, store=scene.store)
        stream = manager.fetch_log_segment(scene.metadata, 0, next_segment=lambda: following)
        stream.seek(len(LOG) - 1500)
        stream.read(1000)
        manager.close()
        stream.close()
    scene.manager.close()


@pytest.fixture(params=["ends a wait", "lets a wait go on"])
def interrupted(request: pytest.FixtureRequest) -> Iterator[threading.Event]:
    """Choose whether a signal ends a wait in a system call, or the wait continues. Libraries differ: with Polars, waits
    continue.

    The event is set when the handler runs in the main thread. On a busy machine, that may be long after the signal.
    """
    came = threading.Event()

    def interrupt(*_: object) -> None:
        came.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    signal.siginterrupt(signal.SIGINT, request.param == "ends a wait")
    yield came
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_copy_ends_at_once_and_leaves_nothing(tmp_path: Path, interrupted: threading.Event) -> None:
    scene = Scene(tmp_path)
    before = [info.key for info in scene.store.inner.list()]
    scene.fall_silent("put", "*.log", moment="during")

    def interrupt() -> None:
        assert scene.is_asked.wait(AT_ONCE_S)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert interrupted.wait(AT_ONCE_S)
        main = threading.main_thread()
        # The handler runs within ``outcome``. After that, the main thread waits for the copy's own thread.
        wait_until(lambda: not is_within(main, outcome) and is_within(main, is_done), AT_ONCE_S)
        scene.answers.set()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        scene.copied()
    assert scene.answers.is_set()  # the copy had time to roll back
    assert [info.key for info in scene.store.inner.list()] == before
    scene.manager.close()


@pytest.mark.slow
def test_a_process_that_ends_without_closing_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    run_fresh(
        """
        import os, signal, sys, warnings
        from pathlib import Path
        from tests.support.stores.closing_states import COPIES, OTHERS, READS, Scene, Waiting

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        children = {}
        for number, (name, use) in enumerate((READS | OTHERS | COPIES).items()):
            folder = Path(sys.argv[1], str(number))
            folder.mkdir()
            child = os.fork()
            if not child:
                signal.alarm(40)
                Waiting(Scene(folder, cache="memory"), use).begin()
                sys.exit(7)
            children[child] = name
        for child, name in children.items():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, name
        """,
        tmp_path,
    )


@pytest.mark.slow
def test_a_process_that_closes_in_the_midst_says_nothing(tmp_path: Path) -> None:
    run_fresh(
        """
        import sys, threading
        from pathlib import Path
        from tests.support.stores.closing_states import COPIES, OTHERS, READS, Scene, Waiting

        ended = []
        for number, (name, use) in enumerate((READS | OTHERS | COPIES).items()):
            folder = Path(sys.argv[1], str(number))
            folder.mkdir()
            scene = Scene(folder, cache="memory")
            under_way = Waiting(scene, use)
            under_way.begin()
            closer = threading.Thread(target=scene.manager.close)
            closer.start()
            ended.append((under_way, closer))
        for under_way, closer in ended:
            under_way.end()
            assert type(under_way.error).__name__ == "AlreadyClosedError", under_way.error
            closer.join(60)
            assert not closer.is_alive()
        """,
        tmp_path,
    )


def test_a_thread_that_makes_its_calls_itself_is_told_at_the_next_one(tmp_path: Path) -> None:
    inner, data = MemoryObjectStore(), write_segment(tmp_path, b"x" * 100)
    manager = RemoteStorageManager(memory_settings(), store=inner)
    with manager.on_this_thread():
        manager.copy_segment(new_metadata(100), data)
        # Compare sets, because threads of earlier tests may end in between.
        before = set(threading.enumerate())
        assert len(list(manager.store.list())) == 3
        assert set(threading.enumerate()) <= before
        manager.close()
        with pytest.raises(AlreadyClosedError):
            manager.copy_segment(new_metadata(100), data)
        with pytest.raises(AlreadyClosedError):
            next(manager.store.list())
    assert len(list(inner.list())) == 3


def test_closing_waits_a_moment_for_a_call_that_a_thread_makes_itself(tmp_path: Path) -> None:
    """Like work on the manager's own threads, a copy on the caller's thread can roll back its writes."""
    inner, data = MemoryObjectStore(), write_segment(tmp_path, b"x" * 100)
    manager = RemoteStorageManager(memory_settings(), store=inner)
    with manager.on_this_thread(), pytest.raises(AlreadyClosedError):
        manager.copy_segment(new_metadata(100), data, on_progress=lambda _: manager.close())
    assert list(inner.list()) == []
