"""Tests of a reader's position after its log changed, from offsets and leader epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.records.small_segments import new_metadata
from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.live import EpochEnd
from tieredstore.partitions.history import Cut, History
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.position import Position, Standing, needs_answer, stand
from tieredstore.testing.segments import PARTITION

LIVE = PartitionLog(
    PARTITION.topic, PARTITION.partition, PARTITION.topic_id, None, seam=0, earliest=100, end=1000, live_epoch=6
)
"""A log with the offsets 100 to 999."""

CUT = replace(LIVE, history=History(5, 700, 6, Cut(250, 5, "broker")))


def stored(*epochs: tuple[int, int]) -> PartitionLog:
    named: LeaderEpochs = epochs
    return replace(LIVE, lineage=Lineage(PARTITION, named, (Span(new_metadata(100), 100, 700),)))


@pytest.mark.parametrize(
    ("position", "log", "answer", "standing"),
    [
        # Positions and logs without epochs: only offsets count.
        (Position(600), LIVE, None, Standing("stands", 600)),
        (Position(99), LIVE, None, Standing("before", 100)),
        (Position(1000), LIVE, None, Standing("stands", 1000)),
        (Position(1001), LIVE, None, Standing("beyond", 1000)),
        # The bucket has later epochs than the position, so the bucket shows the log, whichever broker leads.
        (Position(600, 5), stored((5, 0), (6, 250)), None, Standing("cut", 250)),
        (Position(600, 5), stored((5, 0), (6, 600)), None, Standing("stands", 600)),
        (Position(600, 5), stored((5, 0), (6, 50)), None, Standing("cut", 100)),
        (Position(600, 6), stored((5, 0), (6, 250)), None, Standing("stands", 600)),
        (Position(600), stored((5, 0), (6, 250)), None, Standing("stands", 600)),
        (Position(2000, 5), stored((5, 0), (6, 250)), None, Standing("cut", 250)),
        (Position(600, 3), stored((2, 0), (4, 300), (6, 400)), None, Standing("cut", 300)),
        # Only the broker's answer shows the log.
        (Position(600, 5), LIVE, EpochEnd(5, 250), Standing("cut", 250)),
        (Position(600, 5), LIVE, EpochEnd(5, 600), Standing("stands", 600)),
        (Position(600, 5), LIVE, EpochEnd(3, 700), Standing("stands", 600)),
        (Position(600, 5), LIVE, EpochEnd(3, 120), Standing("cut", 120)),
        # The broker deleted all records of the epoch, and answers with the start of its log.
        (Position(90, 5), LIVE, EpochEnd(5, 100), Standing("before", 100)),
        # The broker's log differs from the bucket's. A reader without an epoch may have read the abandoned records.
        (Position(600), CUT, None, Standing("cut", 250)),
        (Position(250), CUT, None, Standing("stands", 250)),
        (Position(600, 5), CUT, None, Standing("cut", 250)),
        (Position(600, 6), CUT, None, Standing("stands", 600)),
        (Position(600, 4), CUT, EpochEnd(4, 700), Standing("stands", 600)),
        (Position(600, 5), CUT, EpochEnd(4, 700), Standing("cut", 250)),
        # Without a broker, the bucket may lag behind the log that the reader has read. At these offsets the bucket
        # then has records of an earlier leader.
        (Position(600, 6), replace(stored((5, 0)), live_epoch=None), None, Standing("stale", 600)),
        (Position(600, 5), replace(stored((5, 0)), live_epoch=None), None, Standing("stands", 600)),
        (Position(600), replace(stored((5, 0)), live_epoch=None), None, Standing("stands", 600)),
        (Position(700, 6), replace(stored((5, 0)), live_epoch=None), None, Standing("stands", 700)),
        (Position(600, 6), replace(stored((-1, 0)), live_epoch=None), None, Standing("stands", 600)),
        (Position(99, 6), replace(stored((5, 0)), live_epoch=None), None, Standing("before", 100)),
        (Position(600, 6), stored((5, 0)), None, Standing("stands", 600)),
    ],
)
def test_a_position_goes_on_where_the_log_still_has_what_was_read(
    position: Position, log: PartitionLog, answer: EpochEnd | None, standing: Standing
) -> None:
    assert stand(position, log, answer) == standing


def test_the_broker_is_asked_where_its_leader_is_a_later_one() -> None:
    assert needs_answer(Position(600, 5), LIVE)
    assert not needs_answer(Position(600, 6), LIVE)
    assert not needs_answer(Position(600), LIVE)
    assert not needs_answer(Position(600, 5), replace(LIVE, live_epoch=None))


def test_the_bucket_knows_epochs_of_offsets_that_are_read_from_the_broker() -> None:
    log = replace(stored((5, 0), (6, 250)), live_epoch=8)
    assert [log.epoch_before(offset) for offset in (100, 250, 251, 700, 701)] == [None, 5, 6, 6, 8]
    assert log.position(100) == Position(100, 8)
