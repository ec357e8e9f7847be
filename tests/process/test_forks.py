"""Forks: state that resets in a child, objects left to the parent, and locks of other threads that block nothing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.fresh_python import run_fresh

_FORKED = """
    import contextlib, gc, os, signal, sys, threading, warnings

    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on

    def forked(act):
        '''The exit code of a child that runs ``act`` and then ends as any interpreter does.'''
        child = os.fork()
        if not child:
            signal.alarm(120)
            sys.exit(act())
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def forked_while_held(lock, act):
        '''The same, while another thread is within ``with lock``.'''
        inside, leave = threading.Event(), threading.Event()
        def hold():
            with lock:
                inside.set()
                leave.wait(120)
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(120)
        try:
            return forked(act)
        finally:
            leave.set()
            thread.join()
"""


def run_forks(code: str, *arguments: object) -> str:
    return run_fresh(textwrap.dedent(_FORKED) + textwrap.dedent(code), *arguments)


def test_a_fork_safe_lock_is_open_in_the_child_and_still_held_in_the_parent() -> None:
    run_forks("""
        from tieredstore.process.forks import ForkSafeLock

        lock = ForkSafeLock()
        def act():
            with lock:
                return 5
        assert forked_while_held(lock, act) == 5
        # The thread that forks is in the child, and leaves what it entered.
        with lock:
            child = os.fork()
        if not child:
            signal.alarm(120)
            sys.exit(act())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    """)


def test_state_that_is_gone_does_not_begin_again() -> None:
    run_forks("""
        from tieredstore.process.forks import begin_again_after_fork

        class State:
            begun = 0
            def begin_again(self):
                State.begun += 1

        kept, dropped = State(), State()
        begin_again_after_fork(kept)
        begin_again_after_fork(dropped)
        del dropped
        assert forked(lambda: State.begun) == 1
        assert State.begun == 0
    """)


def test_one_that_cannot_begin_again_is_told_of_and_does_not_keep_the_others_from_it() -> None:
    run_forks("""
        from tieredstore.process.forks import begin_again_after_fork

        class State:
            def __init__(self, number):
                self.number, self.begun = number, False
                begin_again_after_fork(self)
            def begin_again(self):
                if self.number == 3:
                    raise ValueError("state 3")
                self.begun = True

        states = [State(number) for number in range(8)]
        heard = []
        sys.unraisablehook = lambda failure: heard.append(failure.exc_value)
        def act():
            assert [str(error) for error in heard[0].exceptions] == ["state 3"], heard
            return sum(state.begun for state in states)
        assert forked(act) == 7
    """)


def test_what_is_left_to_the_parent_is_never_destroyed_in_a_child_or_in_a_child_of_it() -> None:
    printed = run_forks("""
        from tieredstore.process.forks import is_inherited, leave_to_parent

        class Connection:
            def __del__(self):
                print("destroyed by", "the parent" if os.getpid() == parent else "a child", flush=True)

        parent = os.getpid()
        connection = Connection()
        leave_to_parent(connection)
        def act():
            global connection
            assert is_inherited(connection)
            def again():
                assert is_inherited(connection)
                return 7
            assert forked(again) == 7
            del connection
            gc.collect()
            return 6
        assert forked(act) == 6
        assert not is_inherited(connection)
        del connection
    """)
    assert printed == "destroyed by the parent\n"


def test_a_client_of_the_parent_is_neither_closed_nor_destroyed_by_a_child() -> None:
    printed = run_forks("""
        from tieredstore.process.forks import PerProcess

        class Client:
            def __init__(self):
                self.process = os.getpid()
            def close(self):
                print("closed by", "the parent" if os.getpid() == parent else "a child", flush=True)
            def __del__(self):
                if self.process == parent:
                    print("destroyed by", "the parent" if os.getpid() == parent else "a child", flush=True)

        parent = os.getpid()
        clients = PerProcess(Client, Client.close)
        clients.get()
        def act():
            clients.close()
            return int(clients.get().process == os.getpid())
        assert forked_while_held(clients._lock, act) == 1
        clients.close()
    """)
    assert printed == "closed by the parent\ndestroyed by the parent\n"


@pytest.mark.slow
def test_a_client_of_librdkafka_is_left_alone_at_the_end_of_a_child() -> None:
    pytest.importorskip("confluent_kafka")
    run_forks("""
        import logging
        from tieredstore.live.clients import LiveAdmin, LiveConsumer

        logging.disable()  # nobody listens at that port
        configuration = {"bootstrap.servers": "127.0.0.1:9"}
        clients = [LiveAdmin(configuration), LiveConsumer({**configuration, "group.id": "x"})]
        def act():
            clients.clear()
            gc.collect()
            return 4
        assert forked(act) == 4
        clients[1].close()
    """)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("construction", "lock", "used"),
    [
        ("backends.memory.MemoryObjectStore()", "held._lock", "held.put('key', b'') is None"),
        ("backends.cloud.watched_file.WatchedFile(Path(sys.argv[1]), len)", "held._lock", "held.get()"),
        ("backends.wrappers.stack.TokenBucket(1000)", "held._lock", "held.take(1) is None"),
        ("process.bounded_map.BoundedMap(3)", "held._lock", "held.put('key', 1) or held.get('key')"),
        (
            "remote.statistics.Counters(remote.statistics.FetchStats)",
            "held._lock",
            "held.add(requests=1) or held.snapshot().requests",
        ),
        ("process.forks.PerProcess(lambda: 1, print)", "held._lock", "held.get()"),
        ("metrics.counting.Snapshots('name')", "held._lock", "held.add(dict) and 1"),
    ],
)  # fmt: skip
def test_a_lock_that_another_thread_holds_does_not_hang_the_child(
    construction: str, lock: str, used: str, tmp_path: Path
) -> None:
    run_forks(
        f"""
        from pathlib import Path
        from tieredstore import backends, metrics, process, remote
        import tieredstore.backends.cloud.watched_file, tieredstore.backends.memory
        import tieredstore.backends.wrappers.stack, tieredstore.process.forks
        import tieredstore.process.bounded_map, tieredstore.remote.statistics

        Path(sys.argv[1]).write_text("x")
        held = {construction}
        assert forked_while_held({lock}, lambda: int({used})) == 1
    """,
        tmp_path / "file",
    )


def test_pages_of_the_parent_are_not_kept_by_a_child() -> None:
    run_forks("""
        from tieredstore.backends.cloud.upload_parts import POOL, PagePool

        POOL.give(POOL.take(1 << 21))
        own = PagePool()
        own.give(own.take(1 << 21))
        assert len(POOL._kept) == len(own._kept) == 1
        assert forked(lambda: len(POOL._kept) + len(own._kept)) == 0
        assert len(POOL._kept) == 1
    """)


@pytest.mark.slow
def test_a_worker_of_spark_has_managers_of_its_own_and_closes_none_of_its_parent_s() -> None:
    pytest.importorskip("pyspark")
    printed = run_forks("""
        from dataclasses import dataclass
        from tieredstore.spark.source import store_source

        class Manager:
            def __init__(self, source):
                self.source, self.process = source, os.getpid()
            def close(self):
                print(f"{self.source} closed by", "the parent" if os.getpid() == parent else "a child", flush=True)

        @dataclass(frozen=True)
        class Source:
            number: int
            def load(self):
                return self.number
            def version(self):
                return ()

        parent = os.getpid()
        store_source.RemoteStorageManager = Manager
        mine = store_source.manager_of(Source(0))
        assert store_source.manager_of(Source(0)) is mine
        def act():
            for number in range(6):
                assert store_source.manager_of(Source(number)).process == os.getpid()
            return 3
        assert forked_while_held(store_source._managers._lock, act) == 3
        assert store_source.manager_of(Source(0)) is mine
        for number in range(1, 5):
            store_source.manager_of(Source(number))
    """)
    assert printed.splitlines() == ["0 closed by a child", "1 closed by a child", "0 closed by the parent"]
