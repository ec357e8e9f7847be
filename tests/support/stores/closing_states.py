"""States in which a manager may be closed. In each state, a thread uses the manager, and the manager's store blocks the
call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import Moment, Operation, OperationName, ScriptedStore
from tests.support.waiting import is_within, wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.stored import load_segments
from tieredstore.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager

LOG = bytes(range(256)) * 40
MANIFESTS = "*.rsm-manifest"
SILENT_S = 300
"""Time after which a blocked store answers by itself."""


class Scene:
    """Manager over a store that can block its calls, with a copied segment."""

    def __init__(self, folder: Path, *, cache: str = "", mode: str = "none") -> None:
        self.folder = folder
        self.store = ScriptedStore(MemoryObjectStore())
        self.is_asked = threading.Event()
        self.answers = threading.Event()
        chosen = {"fetch.chunk.cache.class": cache, "fetch.chunk.cache.size": "-1"} if cache else {}
        if cache == "disk":
            chosen["fetch.chunk.cache.path"] = str(folder / "cache")
        fetch = {"fetch.coalesce.max.bytes": "1000", "fetch.chunk.cache.prefetch.max.size": "2000"}
        settings = memory_settings(1000, mode=MODES[mode], fetch=fetch, cache=chosen)
        self.manager = RemoteStorageManager(settings, store=self.store)
        self.data: LogSegmentData = write_segment(folder, LOG)
        self.metadata = self.copied()

    def fall_silent(self, name: OperationName, key: str = "*", *, skip: int = 0, moment: Moment = "before") -> None:
        """Block these operations, after the first ``skip`` of them, until ``answers`` is set."""
        self.store.on(name, key, self._block, skip=skip, moment=moment)

    def _block(self, _: Operation) -> None:
        self.is_asked.set()
        assert self.answers.wait(SILENT_S)

    def copied(self) -> RemoteLogSegmentMetadata:
        metadata = new_metadata(len(LOG))
        self.manager.copy_log_segment_data(metadata, self.data)
        return metadata


Use = Callable[[Scene], object]


def first_byte(scene: Scene) -> object:
    scene.fall_silent("get_into")
    return scene.manager.open(scene.metadata).read(10)


def readers_own_buffer(scene: Scene) -> object:
    scene.fall_silent("get_into", skip=1)
    return scene.manager.open(scene.metadata).readinto(bytearray(5000))


def behind_a_seek(scene: Scene) -> object:
    stream = scene.manager.open(scene.metadata)
    stream.read(10)
    wait_until(lambda: scene.manager.fetch_stats.chunk_loads == 3)  # the read one and two that are prefetched
    scene.fall_silent("get_into")
    stream.seek(9000)
    return stream.read(10)


def chunk_by_chunk(scene: Scene) -> object:
    scene.fall_silent("get_into", skip=4)
    return list(map(bytes, scene.manager.open(scene.metadata).chunks()))


def chunk_on_its_way(scene: Scene) -> object:
    """Read a chunk while the store blocks its prefetch."""
    stream = scene.manager.open(scene.metadata)
    scene.fall_silent("get_into", skip=1)
    stream.read(1000)
    assert scene.is_asked.wait(60)
    return stream.read(1000)


def load_of_another_reader(scene: Scene) -> object:
    scene.fall_silent("get_into")
    other = threading.Thread(target=_ended_by_close, args=(lambda: scene.manager.open(scene.metadata).read(10),))
    other.start()
    assert scene.is_asked.wait(60)
    try:
        return scene.manager.open(scene.metadata).read(10)
    finally:
        other.join(60)
        assert not other.is_alive()


def next_segment(scene: Scene) -> object:
    """Open a segment that the previous segment's stream is already prefetching, while the store blocks the read of its
    manifest.
    """
    following = scene.copied()
    scene.fall_silent("get", MANIFESTS, skip=1)
    stream = scene.manager.fetch_log_segment(scene.metadata, 0, next_segment=lambda: following)
    stream.read()
    assert scene.is_asked.wait(60)
    return scene.manager.open(following).read(1)


def manifest(scene: Scene) -> object:
    scene.fall_silent("get", MANIFESTS)
    return scene.manager.fetch_manifest(scene.metadata)


def manifest_of_a_stream(scene: Scene) -> object:
    scene.fall_silent("get", MANIFESTS)
    return scene.manager.open(scene.metadata)


def index(scene: Scene) -> object:
    scene.fall_silent("get", "*.indexes")
    return scene.manager.fetch_index(scene.metadata, IndexType.OFFSET)


def listing(scene: Scene) -> object:
    scene.fall_silent("list", moment="during")
    return list(scene.manager.store.list())


def object_of_the_store(scene: Scene) -> object:
    scene.fall_silent("head")
    return scene.manager.store.head("x")


def catalog_listing(scene: Scene) -> object:
    scene.fall_silent("list", moment="during")
    return load_catalog(scene.manager)


def catalog_manifests(scene: Scene) -> object:
    scene.fall_silent("get", MANIFESTS)
    return load_catalog(scene.manager)


def segments_of_a_listing(scene: Scene) -> object:
    scene.fall_silent("get", MANIFESTS)
    with ThreadPool(2, "segments") as pool:
        return list(load_segments(scene.manager.store, list_segments(scene.manager.store), pool))


def copy_of(name: OperationName, key: str = "*", moment: Moment = "before") -> Use:
    def copy(scene: Scene) -> object:
        scene.fall_silent(name, key, moment=moment)
        return scene.copied()

    return copy


def deletion(scene: Scene) -> object:
    scene.fall_silent("delete")
    scene.manager.delete_log_segment_data(scene.metadata)
    return None


READS: dict[str, Use] = {
    use.__name__: use
    for use in (first_byte, readers_own_buffer, behind_a_seek, chunk_by_chunk, chunk_on_its_way, load_of_another_reader)
}
"""Uses of a stream, for each mode and each cache."""

OTHERS: dict[str, Use] = {
    use.__name__: use
    for use in (
        next_segment,
        manifest,
        manifest_of_a_stream,
        index,
        listing,
        object_of_the_store,
        catalog_listing,
        catalog_manifests,
        segments_of_a_listing,
        deletion,
    )
}

COPIES: dict[str, Use] = {
    "before": copy_of("head"),
    "log": copy_of("put", "*.log"),
    "piece": copy_of("put", "*.log", "during"),
    "answer to log": copy_of("put", "*.log", "after"),
    "indexes": copy_of("put", "*.indexes"),
    "manifest": copy_of("put", MANIFESTS),
    "answer to manifest": copy_of("put", MANIFESTS, "after"),
}


def _ended_by_close(use: Callable[[], object]) -> BaseException | None:
    try:
        use()
    except Exception as error:  # noqa: BLE001  the test examines it
        return error
    return None


class Waiting:
    """Use of a manager on a thread, with the time of its end and the error that ended it."""

    def __init__(self, scene: Scene, use: Use) -> None:
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self._scene, self._use = scene, use
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.error = _ended_by_close(lambda: self._use(self._scene))
        self.ended_at = time.monotonic()

    def begin(self) -> None:
        self._thread.start()
        assert self._scene.is_asked.wait(60), self.error
        # The thread waits for the blocked call, or is blocked itself.
        wait_until(lambda: is_within(self._thread, threading.Condition.wait))

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def waiting(scene: Scene, use: Use) -> Generator[Waiting]:
    """Run ``use`` on a thread; the store blocks it until the ``with`` block ends."""
    under_way = Waiting(scene, use)
    under_way.begin()
    try:
        yield under_way
    finally:
        scene.answers.set()
        under_way.end()
        scene.manager.close()
