"""Producers' states as they follow from batches: those that a real broker wrote, and what its code says of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.paths import GOLDEN
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.kafka.checkpoints import ProducerState, parse_producer_snapshot
from tieredstore.restore.logdir.producers import Producers
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker

SNAPSHOTS = sorted(GOLDEN.glob("*/original/*/*.snapshot"))


def play(log: bytes, known: Sequence[ProducerState] = ()) -> Producers:
    producers = Producers(known)
    for header in read_batch_headers(log):
        producers.append(header, log[header.position : header.position + header.size_in_bytes])
    return producers


@pytest.mark.parametrize("folder", sorted({path.parent for path in SNAPSHOTS}), ids=lambda path: path.name)
def test_batches_give_the_snapshots_that_the_broker_wrote(folder: Path) -> None:
    paths = [path for path in SNAPSHOTS if path.parent == folder]
    states: tuple[ProducerState, ...] = ()
    for path in paths:
        logs = [log for log in path.parent.glob("*.log") if log.stem < path.stem]
        states = play(max(logs).read_bytes(), states).states
        kept = parse_producer_snapshot(path.read_bytes())
        # A broker that was restarted in between has dropped expired producers.
        ids = {state.producer_id for state in kept}
        assert {state for state in states if state.producer_id in ids} == set(kept)
    assert states


ONE, TWO = Producer(1, 0, 5, transactional=True), Producer(2, 0, 0, transactional=True)


@pytest.mark.parametrize(
    ("batches", "states"),
    [
        pytest.param([build_batch([Record(b"a")], 0)], [], id="not idempotent"),
        pytest.param(
            [build_batch([Record(b"a", None, 9)] * 3, 7, producer=Producer(1, 2, 2**31 - 2))],
            [ProducerState(1, 2, 0, 9, 2, 9, -1, -1)],
            id="the sequence begins again",
        ),
        pytest.param(
            [build_batch([Record(b"a")], 0, producer=TWO), build_batch([Record(b"a")], 1, producer=ONE)],
            [ProducerState(2, 0, 0, 0, 0, 0, -1, 0), ProducerState(1, 0, 5, 1, 0, 0, -1, 1)],
            id="two are open",
        ),
        pytest.param(
            [
                build_batch([Record(b"a")], 0, producer=ONE),
                build_end_marker(1, ONE, commit=False, coordinator_epoch=4, timestamp_ms=8),
            ],
            [ProducerState(1, 0, 5, 0, 0, 8, 4, -1)],
            id="aborted",
        ),
        pytest.param(
            [
                build_batch([Record(b"a")], 0, producer=ONE),
                build_end_marker(1, Producer(1, 1), commit=True, coordinator_epoch=4, timestamp_ms=8),
            ],
            [ProducerState(1, 1, -1, -1, 0, 8, 4, -1)],
            id="the marker raises the epoch",
        ),
    ],
)
def test_a_state_follows_from_the_batches(batches: list[bytes], states: list[ProducerState]) -> None:
    producers = play(b"".join(batches))
    assert producers.states == tuple(states)
    assert [state.producer_id for state in producers.in_transactions] == [
        state.producer_id for state in states if state.current_txn_first_offset >= 0
    ]
