"""Transactions that wait for a slow source, or that have failed. No broker is needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from threading import Event
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.restore.produce.restores import TIMEOUT_S
from tieredstore.errors import BrokerError
from tieredstore.model import TopicPartition
from tieredstore.restore.produce import producing, transactions
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import ProduceOptions, RunPosition, SourceRange
from tieredstore.restore.produce.source import SourceBatch
from tieredstore.restore.produce.transactions import Transactions

WHERE: Final = ("orders", 0)
ONE: Final = pa.RecordBatch.from_pylist(
    [{"offset": 0, "timestamp": 1, "key": b"k", "value": b"v", "headers": []}],
    pa.schema(
        [
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    ),
)


class _Transactions:
    """Transactions of a broker that acknowledges everything."""

    def __init__(self) -> None:
        self.committed = Event()
        self.positions: list[RunPosition] = []

    def begin(self) -> None:
        """Do nothing."""

    def send(self, *_: object) -> None:
        """Do nothing."""

    def flush(self) -> dict[TopicPartition, int]:
        return {} if self.committed.is_set() else {("new", 0): 0}

    def send_control(self, _topic: str, key: bytes, value: bytes) -> None:
        if key == b"run":
            self.positions.append(RunPosition.from_bytes(value, "the position"))

    def commit(self) -> None:
        self.committed.set()


def test_a_transaction_ends_while_the_source_has_no_committed_records() -> None:
    """Otherwise, the broker would abort the transaction after ``transaction.timeout.ms``, in each attempt again."""
    broker = _Transactions()

    def batches(_ranges: Mapping[TopicPartition, SourceRange], _turn: int) -> Generator[SourceBatch]:
        yield SourceBatch(WHERE, 1, ONE)
        # Segments with aborted records only follow.
        assert broker.committed.wait(TIMEOUT_S)
        yield SourceBatch(WHERE, 9, None)

    end = _produce(broker, batches, most_s=0.1)
    assert [(each.sources[WHERE].next, each.records) for each in broker.positions] == [(1, 1), (9, 1)]
    assert end == broker.positions[-1]


def test_ctrl_c_ends_a_run_while_the_source_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    is_reading, may_end = Event(), Event()

    def batches(_ranges: Mapping[TopicPartition, SourceRange], _turn: int) -> Generator[SourceBatch]:
        is_reading.set()
        assert may_end.wait(TIMEOUT_S)
        yield SourceBatch(WHERE, 9, None)

    def interrupt(_reading: object) -> None:
        assert is_reading.wait(TIMEOUT_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(producing, "outcome", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _produce(_Transactions(), batches)
    may_end.set()


def _produce(broker: _Transactions, batches: Callable[..., Generator[SourceBatch]], **options: float) -> RunPosition:
    """Produce the records of a source whose only partition has the offsets 0 to 8."""
    source = SimpleNamespace(options=ProduceOptions(topics={"orders": "new"}, name="run"), batches=batches)
    run = ProduceRun(cast("Any", source), {}, **cast("Any", options))
    run._next = {("new", 0): 0}  # pyright: ignore[reportPrivateUsage]
    begin = RunPosition(
        topics={"orders": "new"}, topic_ids={}, partitioner="keep", sources={WHERE: SourceRange(0, 0, 9)},
        ends={("new", 0): 0},
    )  # fmt: skip
    return run._produce(cast("Any", broker), cast("Any", None), begin)  # pyright: ignore[reportPrivateUsage]


class _FailedProducer:
    """A producer whose transaction has failed. Like librdkafka, it sends no more records, and begins no other
    transaction."""

    is_lost = False

    def __init__(self, _configuration: Mapping[str, str]) -> None:
        self.trouble = SimpleNamespace(unavailable=lambda *_: BrokerError("no broker answered"))
        self.is_open = False

    def __len__(self) -> int:
        return 1

    def begin_transaction(self) -> None:
        if self.is_open:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large", txn_requires_abort=True))
        self.is_open = True

    def produce(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "Erroneous state"))

    def abort_transaction(self, _timeout_s: float) -> None:
        """Do nothing."""

    def flush(self, _timeout_s: float) -> None:
        """Do nothing."""

    def purge(self) -> None:
        """Do nothing."""

    def poll(self, _timeout_s: float) -> None:
        """Do nothing."""


def _send_one(broker: Transactions) -> None:
    broker.send("new", 0, [(b"k", b"v", 1, None)], 1)


@pytest.mark.parametrize("act", [Transactions.flush, _send_one])
def test_a_failed_transaction_tells_the_reason(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Transactions], object]
) -> None:
    """Otherwise, a run with a record that is too large would wait a minute for the records after it, and try again."""
    monkeypatch.setattr(transactions, "LiveProducer", _FailedProducer)
    with Transactions({"bootstrap.servers": "none:1"}, "run", most_batch_bytes=1000, timeout_s=1) as broker:
        broker.begin()
        with pytest.raises(BrokerError, match=r"too large; raise max\.message\.bytes of this topic$"):
            act(broker)
