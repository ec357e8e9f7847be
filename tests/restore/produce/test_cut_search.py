"""Cuts at a time across several partitions, compared with a search by hand that knows all transactions."""

from __future__ import annotations

import errno
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.cli.cli_process import tieredstore
from tests.support.examples import examples
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.errors import ConfigError, CorruptDataError, NewerVersionError, ResourceNotFoundError
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import TopicIdPartition
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.query import LogQuery
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.restore.produce.runs import ProduceOptions
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.restore.produce.time_cut import PartitionCut, TimeCut
from tieredstore.testing.batches import ANONYMOUS, Producer, Record, build_batch, build_end_marker

QUERY: Final = LogQuery(Subscribe(("orders",)))


@dataclass(eq=False)
class Sent:
    """Transaction, with the partitions that have its records, and those that still wait for its end marker."""

    is_own_epoch: bool
    commits: bool = True
    partitions: set[int] = field(default_factory=set[int])
    waiting: set[int] = field(default_factory=set[int])


@dataclass(frozen=True)
class Entry:
    """Entry at an offset of a log: a record, or a transaction's end marker."""

    time_ms: int
    transaction: Sent | None
    is_marker: bool = False


class Writer:
    """Producer with id ``number``. If ``is_own_epoch``, each transaction has a new producer epoch (protocol v2)."""

    def __init__(self, number: int, *, is_own_epoch: bool) -> None:
        self.number, self.epoch, self.is_own_epoch = number, 0, is_own_epoch
        self.current: Sent | None = None

    def at_hand(self) -> Producer:
        return Producer(self.number, self.epoch, 0, transactional=True)


class Model:
    """Logs of some partitions of one topic, both as batches and as the entries that the search by hand uses."""

    def __init__(self, bucket: Bucket, partitions: int) -> None:
        self.bucket, self.partitions = bucket, partitions
        self.logs: list[list[Entry]] = [[] for _ in range(partitions)]
        self.writers = [Writer(1, is_own_epoch=True), Writer(2, is_own_epoch=True), Writer(3, is_own_epoch=False)]
        self._batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self._starts = [0] * partitions
        self._opened: list[dict[int, int]] = [{} for _ in range(partitions)]
        self._epochs: list[dict[int, int]] = [{} for _ in range(partitions)]
        self._aborted: list[list[AbortedTransaction]] = [[] for _ in range(partitions)]

    def send(self, partition: int, times: list[int], writer: Writer | None) -> None:
        """Write a batch in the writer's transaction; without a writer, outside of a transaction."""
        log, transaction = self.logs[partition], None
        if writer is not None:
            if writer.current is None:
                writer.current = Sent(writer.is_own_epoch)
            transaction = writer.current
            if transaction.waiting:
                return
            transaction.partitions.add(partition)
            self._opened[partition].setdefault(writer.number, len(log))
            self._epochs[partition][writer.number] = writer.epoch
        producer = ANONYMOUS if writer is None else writer.at_hand()
        self._batches[partition].append(
            build_batch([Record(b"v", None, time) for time in times], len(log), producer=producer)
        )
        log += [Entry(time, transaction) for time in times]

    def end(self, writer: Writer, *, commits: bool) -> None:
        """End a transaction, whose markers :meth:`mark` writes later."""
        if writer.current is not None and not writer.current.waiting:
            writer.current.commits, writer.current.waiting = commits, set(writer.current.partitions)
            writer.epoch += writer.is_own_epoch

    def waiting(self) -> list[tuple[Writer, int]]:
        """Return the markers that are still to be written."""
        return [(one, number) for one in self.writers if one.current for number in sorted(one.current.waiting)]

    def mark(self, writer: Writer, partition: int, time_ms: int) -> None:
        """Write the end marker of the writer's transaction into a partition that waits for it."""
        transaction, log = writer.current, self.logs[partition]
        assert transaction is not None
        marker = build_end_marker(len(log), writer.at_hand(), commit=transaction.commits, timestamp_ms=time_ms)
        self._batches[partition].append(marker)
        log.append(Entry(time_ms, transaction, is_marker=True))
        transaction.waiting.discard(partition)
        first = self._opened[partition].pop(writer.number)
        self._epochs[partition][writer.number] = writer.epoch
        if not transaction.commits:
            stable = min(self._opened[partition].values(), default=len(log))
            self._aborted[partition].append(AbortedTransaction(writer.number, first, len(log) - 1, stable))
        if not transaction.waiting:
            writer.current = None

    def roll(self, partition: int) -> None:
        """End a segment, and put it into the bucket."""
        offsets = range(self._starts[partition], len(self.logs[partition]))
        if not offsets:
            return
        opened, batches = self._opened[partition], self._batches[partition]
        states = [
            ProducerState(one, epoch, 0, offsets[-1], 0, 0, 0, opened.get(one, -1))
            for one, epoch in self._epochs[partition].items()
        ]
        self.bucket.copy(
            TopicIdPartition(FIRST_ID, "orders", partition), batches, offsets, producers=states,
            aborted=self._aborted[partition],
        )  # fmt: skip
        self._starts[partition], self._batches[partition], self._aborted[partition] = offsets.stop, [], []


@dataclass(frozen=True)
class Expected:
    stop: int
    kept: list[int]
    earlier: int
    open_transactions: int


def search_by_hand(logs: list[list[Entry]], time_ms: int) -> list[Expected]:
    """Find the expected cut from complete knowledge of all transactions and logs."""
    stops: list[int] = []
    ends: list[int] = []
    markers: list[dict[Sent, int]] = []
    for log in logs:
        markers.append({one.transaction: at for at, one in enumerate(log) if one.is_marker and one.transaction})
        undecided = [at for at, one in enumerate(log) if one.transaction and one.transaction not in markers[-1]]
        ends.append(min(undecided, default=len(log)))
        later = [at for at, one in enumerate(log) if one.time_ms >= time_ms]
        stops.append(min([*later, ends[-1]]))

    def is_over(transaction: Sent, partition: int) -> bool:
        return markers[partition].get(transaction, len(logs[partition])) < stops[partition]

    def is_kept(one: Entry, partition: int) -> bool:
        if one.transaction is None:
            return True
        others = one.transaction.partitions if one.transaction.is_own_epoch else {partition}
        return one.transaction.commits and all(is_over(one.transaction, other) for other in others)

    expected: list[Expected] = []
    for number, (log, stop, end) in enumerate(zip(logs, stops, ends, strict=True)):
        records = [(at, one) for at, one in enumerate(log) if not one.is_marker]
        expected.append(
            Expected(
                stop,
                [at for at, one in records if at < stop and is_kept(one, number)],
                sum(
                    stop <= at < end and one.time_ms < time_ms and (one.transaction is None or one.transaction.commits)
                    for at, one in records
                ),
                len(
                    {
                        one.transaction
                        for at, one in records
                        if at < stop and one.transaction and not is_over(one.transaction, number)
                    }
                ),
            )
        )
    return expected


def kept_offsets(bucket: Bucket, cut: PartitionCut) -> list[int]:
    """Read the records before the cut, as a restore does."""
    with TopicReader(lambda: bucket.manager, QUERY, ReadSettings(columns=("offset",))) as reader:
        log = reader.snapshot().logs["orders", cut.partition]
        offsets = [at for records in reader.read(log, log.earliest, cut.stop) for at in int64_values(records, "offset")]
    return [at for at in offsets if not any(start <= at < stop for start, stop in cut.left_out)]


Step = tuple[Literal["send", "plain", "end", "mark", "roll"], int, int, int, bool]
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "plain", "end", "end", "mark", "mark", "mark", "roll"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(-4, 3),
        st.booleans(),
    ),
    min_size=10,
    max_size=80,
)


SPLIT: Final[list[Step]] = [
    ("send", 0, 0, 0, False), ("send", 1, 0, 0, False), ("end", 0, 0, 0, True), ("mark", 0, 0, 0, False),
]  # fmt: skip
"""Steps of a transaction in two partitions, only one of which has the transaction's end marker so far."""


@settings(max_examples=examples(60))
@example(steps=[*SPLIT, ("plain", 2, 0, 0, False), ("plain", 2, 0, 0, False)], share=100).via("never ended")
@example(
    steps=[
        *SPLIT, ("roll", 0, 0, 0, False), ("plain", 0, 0, 0, False), ("plain", 0, 0, 0, False),
        ("mark", 0, 0, 0, False),
    ],
    share=90,
).via("over in an earlier segment")  # fmt: skip
@given(steps=STEPS, share=st.integers(0, 100))
def test_the_cut_is_that_of_a_search_by_hand(steps: list[Step], share: int) -> None:
    moment = 10 + len(steps) * share // 100
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(Path(folder))
        model, now = Model(bucket, 3), 10
        for verb, partition, number, shift, flag in steps:
            now += 1
            writer = model.writers[number]
            match verb:
                case "send":
                    model.send(partition, [now + shift] * (1 + flag), writer)
                case "plain":
                    model.send(partition, [now + shift], None)
                case "end":
                    # Mostly commits.
                    model.end(writer, commits=flag or shift > 0)
                case "mark":
                    waiting = model.waiting()
                    if waiting:
                        model.mark(*waiting[(3 * partition + number) % len(waiting)], now)
                case "roll":
                    model.roll(partition)
        for partition in range(3):
            if not model.logs[partition]:
                model.send(partition, [now], None)
            model.roll(partition)
        try:
            with BucketTopics(bucket.manager, ProduceOptions(topics={"orders": "orders"})) as topics:
                cut = topics.find_cut(moment)
            found = [
                Expected(each.stop, kept_offsets(bucket, each), each.earlier_records, each.open_transactions)
                for each in cut.partitions
            ]
        finally:
            bucket.close()
        assert found == search_by_hand(model.logs, moment)


def test_a_transaction_that_a_later_broker_does_not_know_is_left_out(tmp_path: Path) -> None:
    """That broker's log begins in the middle of the transaction, so its snapshots lack it."""
    bucket, where, one = (
        Bucket(tmp_path),
        TopicIdPartition(FIRST_ID, "orders", 0),
        Producer(1, 0, 0, transactional=True),
    )
    records = [build_batch([Record(b"v", None, 10 + 20 * at)], at) for at in range(4)]
    sent = build_batch([Record(b"v", None, 30)], 1, producer=one)
    bucket.copy(where, [records[0], sent], range(2), producers=[ProducerState(1, 0, 0, 1, 0, 30, 0, 1)])
    bucket.copy(where, [records[2]], range(2, 3), epochs=((1, 2),))
    marker = build_end_marker(4, one, commit=True, timestamp_ms=90)
    bucket.copy(where, [records[3], marker], range(3, 5), epochs=((1, 2),))
    with closing(bucket), BucketTopics(bucket.manager, ProduceOptions(topics={"orders": "orders"})) as topics:
        (cut,) = topics.find_cut(60).partitions
    assert (cut.stop, cut.left_out, cut.open_transactions) == (3, ((1, 2),), 1)


def test_a_cut_is_kept_in_a_file(tmp_path: Path) -> None:
    one = PartitionCut("orders", str(FIRST_ID), 3, 70, ((3, 5), (9, 12)), 4, 3, 2, 1)
    cut, path = TimeCut(1_700_000_000_000, (one,)), tmp_path / "cut.json"
    cut.write(path)
    assert TimeCut.read(path) == cut
    ids = {"orders": str(FIRST_ID)}
    assert cut.of_topics(ids, [("orders", 3)]) == {("orders", 3): one}
    for topic_ids, number in ((ids, 4), ({"orders": str(SECOND_ID)}, 3)):
        with pytest.raises(
            ConfigError, match=f"the end offsets in the file lack orders-{number} of the topic id {topic_ids['orders']}"
        ):
            cut.of_topics(topic_ids, [("orders", number)])


@pytest.mark.parametrize(("moment", "sentence"), [("@70", "lack orders-0 of the topic id"), ("@60", "of another time")])
def test_a_cut_in_a_file_is_never_replaced(tmp_path: Path, moment: str, sentence: str) -> None:
    with closing(Bucket(tmp_path)) as bucket:
        bucket.write(10)
    path = tmp_path / "cut.json"
    TimeCut(70, ()).write(path)
    words = ["orders", "--store", bucket.root, "--bootstrap-server", "localhost:1", "--to", moment, "--cut-file", path]
    tieredstore("restore", "produce", *words).fails(2, sentence)
    assert TimeCut.read(path) == TimeCut(70, ())


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_first_runs_with_one_file_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    """Both runs found no file, so both write one."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    TimeCut(70, ()).write(path := tmp_path / "cut.json")
    with pytest.raises(ConfigError, match="now has the end offsets of another run: run the command again"):
        TimeCut(80, ()).write(path)
    assert TimeCut.read(path) == TimeCut(70, ())
    assert list(tmp_path.iterdir()) == [path]


def test_a_repeated_command_ends_at_the_cut_in_the_file_and_says_where(tmp_path: Path) -> None:
    with closing(Bucket(tmp_path)) as bucket:
        words = ["orders", "--store", bucket.root, "--bootstrap-server", "localhost:1", "--to", "@9999999999999"]
        more = ["--cut-file", tmp_path / "cut.json", "--create-with", tmp_path / "none"]
        for _ in range(2):
            bucket.write(10)
            tieredstore("restore", "produce", *words, *more).fails(2, "the restore of orders-0 ends before 10\n")


def test_a_cut_is_written_to_a_pipe_or_a_device(tmp_path: Path) -> None:
    with closing(Bucket(tmp_path)) as bucket:
        bucket.write(10)
    words = ["orders", "--store", bucket.root, "--bootstrap-server", "localhost:1", "--to", "@70"]
    more = ["--cut-file", "/dev/null", "--create-with", tmp_path / "none"]
    tieredstore("restore", "produce", *words, *more).fails(2, "the restore of orders-0 ends before", f"{tmp_path}/none")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(path := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(path.read_bytes)
        TimeCut(70, ()).write(path)
        (tmp_path / "cut.json").write_bytes(written.result())
    assert path.is_fifo()
    assert TimeCut.read(tmp_path / "cut.json") == TimeCut(70, ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no .*cut.json"),
        (b"{", "is not a valid cut of a restore: it does not begin with its version"),
        (b'{"version": 2, "time_ms": 1, "partitions": []}', "is a cut of a restore of version 2"),
        (
            b'{"version": 1, "time_ms": 1, "partitions": [{"topic": "t", "topic_id": "x", "partition": -1}]}',
            "partition",
        ),
    ],
)
def test_a_file_that_is_no_cut_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "cut.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((CorruptDataError, NewerVersionError, ResourceNotFoundError), match=message):
        TimeCut.read(path)
