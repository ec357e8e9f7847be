"""A manager and its streams in a forked child continue with their own threads, whatever the parent was loading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fresh_python import run_fresh

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cache", ["", "memory"])
def test_a_child_forked_amid_loads_reads_on_and_reads_anew_and_so_does_its_parent(cache: str, tmp_path: Path) -> None:
    run_fresh(
        """
        import os, signal, sys, threading, warnings
        from pathlib import Path
        from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
        from tests.support.waiting import wait_until
        from tieredstore.backends.memory import MemoryObjectStore
        from tieredstore.model import IndexType
        from tieredstore.remote import RemoteStorageManager

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        parent, holds, go_on, held = os.getpid(), threading.Event(), threading.Event(), threading.Semaphore(0)

        class Held(MemoryObjectStore):
            def wait(self):
                if holds.is_set() and os.getpid() == parent:
                    held.release()
                    assert go_on.wait(120)
            def get_into(self, key, start, buffer):
                self.wait()
                super().get_into(key, start, buffer)
            def get(self, key, start=0, stop=None):
                self.wait()
                return super().get(key, start, stop)

        log = os.urandom(20_000)
        chosen = {"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "-1"} if sys.argv[2] else {}
        fetch = {"fetch.chunk.cache.prefetch.max.size": "4000", "fetch.coalesce.max.bytes": "1000"}
        settings = memory_settings(1000, mode=MODES["zstd+enc"], fetch=fetch, cache=chosen)
        metadata, other, third = new_metadata(len(log)), new_metadata(len(log)), new_metadata(len(log))
        with RemoteStorageManager(settings, store=Held()) as manager:
            data = write_segment(Path(sys.argv[1]), log)
            for segment in (metadata, other, third):
                manager.copy_log_segment_data(segment, data)
            stream = manager.fetch_log_segment(metadata, 0, next_segment=lambda: third)
            assert stream.read(1500) == log[:1500]
            wait_until(lambda: manager.fetch_stats.chunk_loads == 6, 60, what=lambda: manager.fetch_stats)
            holds.set()
            read = []
            jobs = [
                lambda: read.append(stream.read()),
                lambda: read.append(manager.open(other).read()),
                lambda: read.append(manager.fetch_index(third, IndexType.OFFSET).read()),
            ]
            threads = [threading.Thread(target=job) for job in jobs]
            for thread in threads:
                thread.start()
            for _ in threads:
                assert held.acquire(timeout=60)
            child = os.fork()
            if not child:
                signal.alarm(120)
                stream.seek(1500)
                assert stream.read(3000) == log[1500:4500]
                stream.close()
                for segment in (other, third, metadata):
                    assert manager.open(segment).read() == log
                assert manager.fetch_index(third, IndexType.OFFSET).read() == data.offset_index.read_bytes()
                manager.copy_log_segment_data(new_metadata(len(log)), data)
                manager.close()
                os._exit(0)
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            go_on.set()
            for thread in threads:
                thread.join()
            assert ended == 0, ended
            assert sorted(map(len, read)) == sorted([len(log) - 1500, len(log), len(data.offset_index.read_bytes())])
            assert stream.read(1) == b""
        """,
        tmp_path,
        cache,
    )


@pytest.mark.parametrize("cache", ["", "memory"])
def test_a_child_forked_between_two_chunks_goes_on_with_the_next_one(cache: str, tmp_path: Path) -> None:
    run_fresh(
        """
        import os, signal, sys, warnings
        from pathlib import Path
        from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
        from tieredstore.remote import RemoteStorageManager

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        log = os.urandom(20_000)
        chosen = {"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "-1"} if sys.argv[2] else {}
        fetch = {"fetch.coalesce.max.bytes": "3000"}
        settings = memory_settings(1000, mode=MODES["zstd+enc"], fetch=fetch, cache=chosen)
        metadata = new_metadata(len(log))
        with RemoteStorageManager(settings) as manager:
            manager.copy_log_segment_data(metadata, write_segment(Path(sys.argv[1]), log))
            for border in (0, 1, 7, 18, 19):
                with manager.open(metadata) as stream:
                    chunks = stream.chunks()
                    read = b"".join(bytes(next(chunks)) for _ in range(border + 1))
                    child = os.fork()
                    if not child:
                        signal.alarm(120)
                        os._exit(0 if read + b"".join(map(bytes, chunks)) == log else 3)
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, border
                    assert read + b"".join(map(bytes, chunks)) == log
        """,
        str(tmp_path),
        cache,
    )


def test_a_child_is_told_what_its_parent_alone_has(tmp_path: Path) -> None:
    """The parent's threads do not exist in a child, so a child that waited for them would hang. The error must name
    these threads, and not blame the store.
    """
    run_fresh(
        """
        import os, signal, sys, warnings
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        from tests.support.records.small_segments import memory_settings, new_metadata, write_segment
        from tieredstore.backends.memory import MemoryObjectStore
        from tieredstore.catalog.listing import list_segments
        from tieredstore.catalog.stored import load_segments
        from tieredstore.errors import AlreadyClosedError
        from tieredstore.process.thread_pool import ThreadPool
        from tieredstore.remote import RemoteStorageManager
        from tieredstore.remote.manager import Pools

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        store, data = MemoryObjectStore(), write_segment(Path(sys.argv[1]), b"x" * 500)

        def in_child(use, words):
            child = os.fork()
            if not child:
                signal.alarm(20)
                try:
                    use()
                except AlreadyClosedError as error:
                    os._exit(0 if words in str(error) else 3)
                os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, words

        pools = [ThreadPoolExecutor(1) for _ in range(3)]
        with RemoteStorageManager(memory_settings(), store=store, pools=Pools(*pools)) as manager:
            first, second = new_metadata(500), new_metadata(500)
            for metadata in (first, second):
                manager.copy_log_segment_data(metadata, data)
            assert manager.open(first).read() == b"x" * 500
            for use in (
                lambda: manager.open(first).read(),
                lambda: manager.fetch_manifest(second),
                lambda: manager.copy_log_segment_data(new_metadata(500), data),
            ):
                in_child(use, "belong to the parent process")
            with ThreadPool(2, "manifests") as pool:
                loaded = load_segments(manager.store, list_segments(manager.store), pool)
                next(loaded)
                in_child(lambda: next(loaded), "started by the parent process")
                assert next(loaded).metadata.segment_size_in_bytes == 500
            listed = manager.store.list()
            before = [next(listed).key]
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(0 if before + [info.key for info in listed] == [info.key for info in store.list()] else 3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert before + [info.key for info in listed] == [info.key for info in store.list()]
        """,
        tmp_path,
    )
