"""Transactions that wait for a slow source. No broker is needed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from threading import Event
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from tests.restore.produce.restores import TIMEOUT_S
from tieredstore.model import TopicPartition
from tieredstore.restore.produce import producing
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import ProduceOptions, RunPosition, SourceRange
from tieredstore.restore.produce.source import SourceBatch

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


def test_a_transaction_ends_while_the_source_has_no_committed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the broker would abort the transaction after ``transaction.timeout.ms``, in each attempt again."""
    monkeypatch.setattr(producing, "_MOST_S", 0.1)
    broker = _Transactions()

    def batches(_ranges: Mapping[TopicPartition, SourceRange], _turn: int) -> Generator[SourceBatch]:
        yield SourceBatch(WHERE, 1, ONE)
        # Segments with aborted records only follow.
        assert broker.committed.wait(TIMEOUT_S)
        yield SourceBatch(WHERE, 9, None)

    end = _produce(broker, batches)
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


def _produce(broker: _Transactions, batches: Callable[..., Generator[SourceBatch]]) -> RunPosition:
    """Produce the records of a source whose only partition has the offsets 0 to 8."""
    source = SimpleNamespace(options=ProduceOptions(topics={"orders": "new"}, name="run"), batches=batches)
    run = ProduceRun(cast("Any", source), {})
    run._next = {("new", 0): 0}  # pyright: ignore[reportPrivateUsage]
    begin = RunPosition(
        topics={"orders": "new"}, topic_ids={}, partitioner="keep", sources={WHERE: SourceRange(0, 0, 9)},
        ends={("new", 0): 0},
    )  # fmt: skip
    return run._produce(cast("Any", broker), cast("Any", None), begin)  # pyright: ignore[reportPrivateUsage]
