"""State of each kind, written by the real code: ``python -m tests.versions.state`` makes a release's golden folder.

``bucket`` has the objects of one bucket, ``entropy`` those of one with another layout, ``local`` files of a disk. Each
kind has a function that continues what an earlier release wrote, and fails if it cannot.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tests.kms.test_sealed_key import MemoryKms
from tests.pubsub.produce.test_sink import batches_of, commits_of
from tests.support.cli.cli_process import tieredstore
from tests.support.paths import GOLDEN
from tests.support.pipelines.pipeline_runs import pipeline_of, run_once, verify_output
from tests.support.pubsub.pubsub_topics import publish, read_values, topics_later, topics_on
from tests.support.records.hourly_topics import HOUR_MS, NOON_MS
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_buckets import Bucket, fill
from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tieredstore import __version__
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.watermark import Watermark
from tieredstore.errors import NewerVersionError, TieredStoreError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, TopicSettings
from tieredstore.kms.sealed_key import open_sealed, seal
from tieredstore.model import Uuid
from tieredstore.ops.garbage import collection
from tieredstore.ops.garbage.holds import LegalHold, list_holds, place_hold
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.ops.steps import Outcome
from tieredstore.ops.verification.selection import ClaimedOffsets, Level, SoundSegment
from tieredstore.ops.verification.state import VerifyState
from tieredstore.pipelines.log import commit_log
from tieredstore.pipelines.log.successes import read_success
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.deletion import collect_garbage
from tieredstore.places.record import Layout, record_layout
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import BrokerSeat, FreeCapacity, TopicLoad
from tieredstore.pubsub.governor.store_governor import StoreGovernor
from tieredstore.pubsub.queue.groups import StoreGroup
from tieredstore.pubsub.queue.queues import Position
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection
from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.fetch.chunk_cache import ChunkKey
from tieredstore.remote.layout import KeyLayout
from tieredstore.restore.logdir.prepared import PreparedPartition, PreparedRestore, PreparedTopic, new_plan
from tieredstore.restore.produce.offset_map import OffsetMapFile, load_map
from tieredstore.restore.produce.runs import (
    OffsetRun,
    RunPosition,
    SourceRange,
    offsets_from_bytes,
    offsets_to_bytes,
)
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut
from tieredstore.spark.memq import readers as memq_readers
from tieredstore.spark.source.streaming import StreamOffsets
from tieredstore.testing.segments import Record, build_batch
from tieredstore.uploader.watermarks import WatermarkStore
from tieredstore.versions import (
    ASSIGNMENTS,
    BROKER_SEAT,
    CLUSTER_SNAPSHOT,
    COMMIT,
    DIRECTORY_STATEMENT,
    DISK_CACHE,
    EXPORT,
    GENERATION,
    GROUP_MEMBER,
    GROUP_PARTITION,
    HOLD,
    LAYOUT_RECORD,
    LEASE,
    MEMQ_OFFSETS,
    OFFSET_MAP,
    QUEUE_ENTRY,
    QUEUE_START,
    RESTORE_CUT,
    RESTORE_OFFSETS,
    RESTORE_PLAN,
    RESTORE_POSITION,
    RETIRED,
    SEALED_KEY,
    SINK,
    SNAPSHOT,
    SPARK_OFFSETS,
    TOPIC,
    VERIFY_STATE,
    WATERMARK,
    StateKind,
)

FOLDER: Final = GOLDEN / "0.1.0"
"""Folder that the release 0.1.0 wrote. It is never written again."""

WHERE: Final = partition_of("orders")
LAYOUT: Final = Layout(4, "c1")
CHUNK: Final = ChunkKey("store", "key", 0, bytes(16))
KMS: Final = MemoryKms(b"k" * 32)
DAY_MS: Final = 86_400_000
TOPIC_SETTINGS: Final = (TopicSettings("orders", str(WHERE.topic_id), 3, 1, {"retention.ms": "1000"}),)
PIPELINE: Final = pipeline_of(
    partitioner__granularity__hour="true",
    pipeline__finalize="true",
    secor__file__reader__writer__factory="json",
    secor__compression__codec="none",
    secor__message__parser__class="kafka-timestamp",
)


class GoldenStore(MemoryObjectStore):
    """A store in memory whose identity is the same in each process, because catalogs and caches name their store."""

    @property
    def identity(self) -> str:
        return "memory://golden"


@dataclasses.dataclass
class State:
    """The stores, which are in memory, and the folder on disk."""

    local: Path
    bucket: MemoryObjectStore = dataclasses.field(default_factory=GoldenStore)
    entropy: MemoryObjectStore = dataclasses.field(default_factory=MemoryObjectStore)

    @classmethod
    def load(cls, folder: Path, local: Path) -> State:
        """Load a golden folder: copy the files of its disk to ``local``, and put its objects into the stores."""
        state = cls(local)
        shutil.copytree(folder / "local", local, dirs_exist_ok=True)
        for name, store in state.stores.items():
            for path in sorted((folder / name).rglob("*")):
                if path.is_file():
                    store.put(path.relative_to(folder / name).as_posix(), path.read_bytes())
        return state

    def save(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.local, folder / "local", ignore=shutil.ignore_patterns("source"))
        for name, store in self.stores.items():
            for info in store.list():
                path = folder / name / info.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.get(info.key))

    @property
    def stores(self) -> dict[str, MemoryObjectStore]:
        return {"bucket": self.bucket, "entropy": self.entropy}

    @property
    def topics(self) -> Topics:
        return topics_on(self.bucket, retention_bytes="1", delete_delay_ms=str(20 * DAY_MS))


# --- one function for each kind: it continues existing state, or creates new state ---


def move_watermark(state: State, *, is_new: bool = False) -> None:
    with ThreadPoolExecutor(2) as pool:
        marks = WatermarkStore(state.bucket, KeyLayout(), pool, CommittedSegments(state.bucket, ""))
        stored = marks.load(WHERE, ())
        assert (stored.value is None or stored.is_remade) == is_new
        before = stored.value
        if before is None:
            before = Watermark(WHERE, 0, 0)
        moved = before.behind(None, before.next_offset + 10, 1, 1, 1)
        marks.move(stored, moved)
        assert marks.peek(WHERE) == moved


def place_another_hold(state: State, *, is_new: bool = False) -> None:
    before = list(list_holds(state.bucket, ""))
    assert bool(before) != is_new
    place_hold(state.bucket, "", LegalHold(f"case-{len(before)}", "payments", reason="audit"))
    assert [one.name for one in list_holds(state.bucket, "")] == [f"case-{at}" for at in range(len(before) + 1)]


def take_another_snapshot(state: State, *, is_new: bool = False) -> None:
    snapshots = Snapshots(state.bucket, "", None)
    count = len(snapshots.find_all())
    assert (count > 0) != is_new
    if not is_new:
        assert snapshots.find().topics == TOPIC_SETTINGS
    assert snapshots.write(ClusterSnapshot("c1", NOON_MS + count * HOUR_MS, TOPIC_SETTINGS), is_hourly=True)
    assert snapshots.find().taken_ms == NOON_MS + count * HOUR_MS


def extend_map(state: State, *, is_new: bool = False) -> None:
    file = OffsetMapFile(state.bucket, "", "r1")
    assert bool(file.map.topics) != is_new
    file.map.add_topic("orders", "orders.new")
    count = len(list(file.map.mapped_runs(("orders", 0))))
    file.map.extend([OffsetRun("orders", 0, 20 * count, 0, 11 * count, 10)])
    file.save()
    assert load_map(state.bucket, "", "r1").translate(("orders", 0), 20 * count).offset == 11 * count


def write_in_layout(state: State, *, is_new: bool = False) -> None:
    assert bool(list(state.entropy.list())) != is_new
    record_layout(state.entropy, "", LAYOUT)


def use_topic(state: State, *, is_new: bool = False) -> None:
    """Free a topic's expired batches and write to the topic.

    This uses four kinds of state: topics, queue entries, starts of queues, and records of retention.
    """
    topics = state.topics
    if is_new:
        topics.create("orders")
        publish(topics, [b"first", b"second"])
        list(GarbageCollection(BatchLog(topics, topics.get("orders")), dry_run=False).run())
        publish(topics, [b"kept"])
        return
    assert read_values(topics) == [b"kept"]
    found = GarbageCollection(BatchLog(topics_later(topics, 40), topics.get("orders")), dry_run=False).run()
    assert Outcome.DELETED in [each.code for each in found], "what the earlier release freed is due"
    publish(topics, [b"later"])
    assert read_values(topics) == [b"later"]


def join_group(state: State, *, is_new: bool = False) -> None:
    now = [0.0]
    member = StoreGroup(state.topics.folder, "readers", "orders", lambda: 1, monotonic=lambda: now[0], beat_s=5.0)
    member.tick()
    if not is_new:
        assert not member.claims(), "the member of the earlier release may still live"
        now[0] = 20.0
        member.tick()
    (claim,) = member.claims().values()
    assert claim.committed == (None if is_new else Position(256, 0, 1))
    member.commit({0: Position(256, 0, 1) if is_new else Position(512)})
    if is_new:
        # End like a killed process, which gives up no partition.
        member._stopped.set()  # pyright: ignore[reportPrivateUsage]
    else:
        member.leave()


def govern(state: State, *, is_new: bool = False) -> None:
    now = [0.0]
    seat = BrokerSeat("b1" if is_new else "b2", BrokerAddress("", "10.0.0.1", 9092), 200)
    governor = StoreGovernor(
        state.topics.folder, lambda: seat, lambda: [TopicLoad("orders", 10)], FreeCapacity(),
        monotonic=lambda: now[0], wall_ms=lambda: int(now[0] * 1000),
    )  # fmt: skip
    for _ in range(12):
        governor.tick()
        now[0] += 2.0
    assert governor.generation == (1 if is_new else 2)
    assert governor.serves("orders")


def commit_epoch(state: State, *, is_new: bool = False) -> None:
    topics = topics_on(state.bucket, cluster="queries")
    if is_new:
        topics.create("orders")
    assert commits_of(topics).commit(0, batches_of(topics, 0)) is is_new
    if not is_new:
        assert commits_of(topics).commit(1, batches_of(topics, 1))


def run_pipeline(state: State, *, is_new: bool = False) -> None:
    """Run a pipeline over further records.

    This uses four kinds of state: generations, entries, snapshots, and statements of directories.
    """
    log = commit_log_of(PIPELINE, state.bucket)
    before = log.read().number
    assert (before < 0) is is_new
    records = [Record(b"%d" % at, timestamp_ms=NOON_MS + at * HOUR_MS) for at in range(12)]
    with closing(StoredTopic(state.local / "source" / str(before))) as topic, _frequent_snapshots():
        for start in (0, 6) if not is_new else (0,):
            topic.copy(start, [build_batch(records[start : start + 6], start)])
        entries = run_once(topic, state.bucket, PIPELINE)
    assert [one.start for entry in entries for one in entry.windows if one.records] == [0 if is_new else 6]
    assert log.read().number > before
    assert not list(verify_output(PIPELINE, state.bucket))
    done = [key for key in (info.key for info in state.bucket.list("out/")) if key.endswith("/_SUCCESS")]
    assert all(_is_stated(state, key) for key in done)
    assert done


def _is_stated(state: State, key: str) -> bool:
    success = read_success(state.bucket, key.removesuffix("/_SUCCESS"))
    return success is not None and bool(success.statements)


def _frequent_snapshots() -> Any:
    return patch.object(commit_log, "SNAPSHOT_EVERY", 2)


def export(state: State, *, is_new: bool = False) -> None:
    source = state.local / "source" / f"export-{is_new}"
    bucket = Bucket(source)
    fill(bucket)
    bucket.close()
    done = tieredstore("cat", "--store", bucket.root.as_uri(), "orders", "-o", state.local / "export")
    if done.code:
        raise NewerVersionError(done.stderr)
    assert ("has all records" in done.stderr) is not is_new


def remember_segments(state: State, *, is_new: bool = False) -> None:
    first, second = MadeSegment(WHERE, 0, 9), MadeSegment(WHERE, 10, 19)
    own = GoldenStore()
    first.put(own)
    second.put(own)
    listed = list(list_segments(own))
    with VerifyState(state.local / "verify", own.identity, "", now_ms=lambda: 5) as known:
        assert (known.find(listed[0], Level.LISTING) is None) is is_new
        known.keep(listed[0 if is_new else 1], Level.LISTING, SoundSegment(ClaimedOffsets(9, ((0, 0),)), 1000))


def cache(state: State, *, is_new: bool = False) -> None:
    with closing(DiskChunkCache(state.local / "cache", 1 << 20)) as chunks:
        read = bytearray(5)
        assert chunks.get_into(CHUNK, memoryview(read)) is not is_new
        if is_new:
            chunks.put(CHUNK, b"chunk")
            return
        assert bytes(read) == b"chunk"
        other = dataclasses.replace(CHUNK, chunk=1)
        chunks.put(other, b"other")
        assert other in chunks


def open_key(state: State, *, is_new: bool = False) -> None:
    path = state.local / "key.sealed"
    if is_new:
        path.write_bytes(seal(b"private", pair="key1", service="memory", source=KMS))
    opened = open_sealed(path.read_bytes(), name=str(path), pair="key1", service="memory", source=KMS)
    assert opened == b"private"


def continue_stream(state: State, *, is_new: bool = False) -> None:
    path, where = state.local / "spark.json", ("orders", 0)
    topic_id = Uuid(bytes(range(16)))
    if is_new:
        path.write_text(json.dumps(StreamOffsets({where: 17}, {"orders": topic_id}, epochs={where: 5}).to_json()))
    stored = StreamOffsets.from_json(json.loads(path.read_text()))
    assert stored.offsets == {where: 17}
    assert stored.epochs == {where: 5}
    assert StreamOffsets.from_json(stored.to_json()) == stored


def continue_batches(state: State, *, is_new: bool = False) -> None:
    path = state.local / "memq.json"
    if is_new:
        path.write_text(json.dumps({"version": MEMQ_OFFSETS.version, "topic": "orders", "offsets": {"0": 512}}))
    read = memq_readers._read_checkpoint(json.loads(path.read_text()), "orders")  # pyright: ignore[reportPrivateUsage]
    assert read.offsets == {0: 512}


Step = Callable[..., None]


def continue_restore(state: State, *, is_new: bool = False) -> None:
    path = state.local / "restore-position.json"
    position = RunPosition(
        topics={"orders": "new"}, topic_ids={"orders": str(Uuid(bytes(range(16))))}, partitioner="keep",
        sources={("orders", 0): SourceRange(2, 5, 9)}, ends={("new", 0): 7}, records=4, offset_records=2, mapped=1,
    )  # fmt: skip
    if is_new:
        path.write_bytes(position.to_bytes())
    assert RunPosition.from_bytes(path.read_bytes(), "the newest position") == position


def map_restored_offsets(state: State, *, is_new: bool = False) -> None:
    path, runs = state.local / "restore-offsets.json", [OffsetRun("orders", 0, 5, 0, 7, 3)]
    if is_new:
        path.write_bytes(offsets_to_bytes(runs))
    assert offsets_from_bytes(path.read_bytes(), "the list") == runs


def restore_cut(state: State, *, is_new: bool = False) -> None:
    path, cut = state.local / "restore-cut.json", TimeCut(17, (PartitionCut("orders", "id", 0, 9, ((3, 5),)),))
    if is_new:
        cut.write(path)
    assert TimeCut.read(path) == cut


def continue_prepared(state: State, *, is_new: bool = False) -> None:
    path, topic_id = state.local / "restore.json", str(Uuid(bytes(range(16))))
    topic = PreparedTopic("orders", topic_id, topic_id, (PreparedPartition((1, 2), 5, 9),))
    prepared = PreparedRestore("c1", (topic,))
    if is_new:
        with new_plan(path) as file:
            prepared.write(file)
    assert PreparedRestore.read(path) == prepared


CONTINUED: Final[dict[StateKind, Step]] = {
    WATERMARK: move_watermark,
    HOLD: place_another_hold,
    OFFSET_MAP: extend_map,
    LAYOUT_RECORD: write_in_layout,
    CLUSTER_SNAPSHOT: take_another_snapshot,
    TOPIC: use_topic,
    QUEUE_ENTRY: use_topic,
    QUEUE_START: use_topic,
    RETIRED: use_topic,
    GROUP_MEMBER: join_group,
    GROUP_PARTITION: join_group,
    BROKER_SEAT: govern,
    LEASE: govern,
    ASSIGNMENTS: govern,
    SINK: commit_epoch,
    GENERATION: run_pipeline,
    COMMIT: run_pipeline,
    SNAPSHOT: run_pipeline,
    DIRECTORY_STATEMENT: run_pipeline,
    EXPORT: export,
    VERIFY_STATE: remember_segments,
    DISK_CACHE: cache,
    SEALED_KEY: open_key,
    SPARK_OFFSETS: continue_stream,
    RESTORE_PLAN: continue_prepared,
    RESTORE_CUT: restore_cut,
    RESTORE_POSITION: continue_restore,
    RESTORE_OFFSETS: map_restored_offsets,
    MEMQ_OFFSETS: continue_batches,
}


def collect(state: State) -> None:
    """Run every garbage collection over the bucket; ignore its errors."""
    topics, day = topics_later(state.topics, 400), DAY_MS
    segments = collection.GarbageCollection(topics.store, "", min_age_ms=day, upload_max_age_ms=1000, dry_run=False)
    runs: list[Callable[[], object]] = [
        lambda: list(GarbageCollection(BatchLog(topics, topics.get("orders")), dry_run=False).run()),
        lambda: list(collect_garbage(PIPELINE, topics.store, min_age_ms=day, dry_run=False)),
        lambda: list(segments.run(Scope())),
    ]
    for run in runs:
        try:
            run()
        except TieredStoreError:
            continue


def main() -> None:
    assert not FOLDER.exists() or __version__ == FOLDER.name, "an earlier release's folder never changes"
    with tempfile.TemporaryDirectory() as folder:
        state = State(Path(folder))
        for step in dict.fromkeys(CONTINUED.values()):
            step(state, is_new=True)
        state.save(FOLDER)
    (FOLDER / "README").write_text(
        "State of each kind as tieredstore 0.1.0 wrote it: `python -m tests.versions.state`. It never changes again.\n"
    )


if __name__ == "__main__":
    main()
