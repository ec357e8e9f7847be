"""The disk cache with several processes on one folder, and after forks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY
from tests.support.stores.disk_cache_access import CHUNKS, KEY, got, opened, value_files
from tieredstore.remote.diskcache.values import HEADER_SIZE
from tieredstore.remote.fetch.chunk_cache import CacheStats, ChunkKey

pytestmark = pytest.mark.slow
LIMIT = 150_000
STEPS = 400


def content(key: ChunkKey, size: int) -> bytes:
    return random.Random(f"{key}/{size}").randbytes(size)


def hammer(path: Path, seed: int) -> CacheStats:
    """Put and get at random; raise if a byte is wrong."""
    rand = random.Random(seed)
    with opened(path, LIMIT) as cache:
        for _ in range(STEPS):
            key, size = rand.choice(CHUNKS), rand.choice([1000, 20_000])
            chunk = got(cache, key, size)
            if chunk is None:
                cache.put(key, content(key, size))
            elif chunk != content(key, size):
                raise ValueError(f"{key} is wrong")
        return cache.stats


def test_processes_that_hammer_one_folder_get_right_bytes_and_keep_to_the_limit(tmp_path: Path) -> None:
    with get_context("spawn").Pool(3) as pool:
        stats = pool.starmap(hammer, [(tmp_path, seed) for seed in range(3)])
        pool.close()
        pool.join()
    assert [counted.damaged for counted in stats] == [0, 0, 0]
    assert sum(counted.hits for counted in stats) > STEPS / 4
    assert sum(counted.evictions for counted in stats) > 0
    with opened(tmp_path, LIMIT) as cache:
        held = cache.stats
    assert held.bytes <= LIMIT
    assert sum(file.stat().st_size - HEADER_SIZE for file in value_files(tmp_path)) == held.bytes
    assert len(value_files(tmp_path)) == held.entries


def test_a_process_sees_what_another_one_put(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        assert got(cache, KEY, 5) is None
        run_fresh(
            """
            import sys
            from pathlib import Path
            from tests.support.stores.disk_cache_access import KEY, opened
            with opened(Path(sys.argv[1])) as cache:
                cache.put(KEY, b"chunk")
            """,
            tmp_path,
        )
        assert got(cache, KEY, 5) == b"chunk"


FORK = """
    import os, sys
    from pathlib import Path
    from tests.support.stores.disk_cache_access import CHUNKS, got, opened

    def check(cache, own):
        cache.put(CHUNKS[own], b"chunk")
        for _ in range(100):
            assert got(cache, CHUNKS[0], 5) == b"chunk"
        return got(cache, CHUNKS[own], 5) == b"chunk"

    with opened(Path(sys.argv[1])) as cache:
        cache.put(CHUNKS[0], b"chunk")
        with cache._counters._lock:  # as if another thread were counting
            child = os.fork()
            if child == 0:
                ok = check(cache, 1) and cache.stats.hits == 101 and cache.stats.failures == 0
                cache.close()
                os._exit(0 if ok else 1)
        assert check(cache, 2)
        assert os.waitpid(child, 0)[1] == 0
        assert got(cache, CHUNKS[1], 5) == b"chunk"
        assert cache.stats.hits == 102 and cache.stats.failures == 0
        cache.put(CHUNKS[3], b"chunk")
    """


def test_a_forked_child_opens_the_folder_for_itself(tmp_path: Path) -> None:
    run_fresh(FORK, tmp_path)
    with opened(tmp_path) as cache:
        assert [key in cache for key in CHUNKS[:4]] == [True] * 4


BUSY_FORKS = """
    import os, sys, threading, warnings
    from pathlib import Path
    from tests.support.stores.disk_cache_access import CHUNKS, got, opened

    def work():
        while not done.is_set():
            for key in CHUNKS:
                if got(cache, key, 50_000) is None:
                    cache.put(key, bytes([key.chunk]) * 50_000)

    def child_is_fine(number):
        key = CHUNKS[number]
        cache.put(key, bytes([key.chunk]) * 50_000)
        databases = [fd for fd in Path("/proc/self/fd").iterdir() if "cache.db" in os.path.realpath(fd)]
        found = [got(cache, one, 50_000) in {None, bytes([one.chunk]) * 50_000} for one in CHUNKS]
        return all(found) and cache.stats.failures == 0 and len(databases) == 3  # the database, -wal and -shm

    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
    done = threading.Event()
    # on a busy machine who has the lock may stand still for a second
    with opened(Path(sys.argv[1]), 600_000, lock_timeout_s=60.0) as cache:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                child = os.fork()
                if child == 0:
                    os._exit(0 if child_is_fine(number) else 1)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            done.set()
        for thread in threads:
            thread.join()
        assert cache.stats.failures == cache.stats.damaged == 0
    """


def test_forks_amid_other_threads_work_lose_no_call(tmp_path: Path) -> None:
    run_fresh(BUSY_FORKS, tmp_path)


STUCK_FORK = """
    import os, sys
    from pathlib import Path
    from tests.support.stores.disk_cache_access import CHUNKS, got, opened

    with opened(Path(sys.argv[1])) as cache:
        cache.put(CHUNKS[0], b"chunk")
        with cache._gate:  # as if another thread were stuck in a call
            child = os.fork()
            if child == 0:
                cache.put(CHUNKS[1], b"chunk")
                os._exit(0 if got(cache, CHUNKS[0], 5) is None and cache.stats.failures == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert got(cache, CHUNKS[0], 5) == b"chunk" and CHUNKS[1] not in cache
    """


def test_a_child_forked_while_a_call_is_stuck_has_no_cache(tmp_path: Path) -> None:
    run_fresh(STUCK_FORK, tmp_path)


WRITER = """
import sys
from pathlib import Path
from tests.support.stores.disk_cache_access import CHUNKS, opened

with opened(Path(sys.argv[1]), 2_000_000) as cache:
    cache.stats
    print("begun", flush=True)
    while True:
        for key in CHUNKS:
            cache.put(key, bytes([key.chunk]) * 200_000)
"""


def kill_a_writer(path: Path, after_s: float) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(after_s)
        child.kill()


def test_a_process_killed_while_it_writes_leaves_a_cache_that_works(tmp_path: Path) -> None:
    for attempt in range(5):
        kill_a_writer(tmp_path, 0.005 + attempt * 0.017)
    with opened(tmp_path, 2_000_000) as cache:
        for key in CHUNKS:
            assert got(cache, key, 200_000) in {None, bytes([key.chunk]) * 200_000}
        cache.put(KEY, bytes(200_000))
        assert got(cache, KEY, 200_000) == bytes(200_000)
        assert cache.stats.bytes <= 2_000_000
        assert cache.stats.damaged == cache.stats.failures == 0
