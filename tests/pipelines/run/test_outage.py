"""A store or broker that is away is waited for, for so long and no longer; windows that Spark repeats."""

from __future__ import annotations

import pytest

from tieredstore.errors import AccessDenied, ConfigError, DataLoss, StoreUnavailable
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.outage import Outage
from tieredstore.pipelines.run.windows import unwritten

AWAY = StoreUnavailable("away")


def test_an_outage_is_waited_for_with_longer_and_longer_pauses_and_then_ends_it() -> None:
    now = [0.0]
    outage = Outage(100, clock=lambda: now[0])
    pauses = [outage.note_failure(AWAY) for _ in range(8)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    now[0] = 99
    outage.note_failure(AWAY)
    # It counts from the first failure on, and anew once something worked.
    outage.over()
    now[0] = 150
    assert outage.note_failure(AWAY) == 0.5
    now[0] = 250
    with pytest.raises(StoreUnavailable):
        outage.note_failure(AWAY)


def test_what_no_waiting_mends_is_raised_at_once() -> None:
    with pytest.raises(AccessDenied):
        Outage(100).note_failure(AccessDenied("no"))


def window(start: int, stop: int, partition: int = 0, topic_id: str = "id") -> Window:
    return Window("orders", topic_id, partition, start, stop)


def test_of_windows_that_are_repeated_the_rest_is_written() -> None:
    written = {("orders", 0): Progress("id", 15, -1, 0, 0)}
    windows = [window(0, 10), window(10, 20), window(20, 30), window(5, 9, partition=1), window(9, 12, partition=1)]
    assert unwritten(windows, written) == [window(15, 20), *windows[2:]]
    assert unwritten(windows[:1], written) == []
    with pytest.raises(DataLoss, match="the commit log ends before offset 15"):
        unwritten([window(20, 30)], written)
    with pytest.raises(ConfigError, match="created again"):
        unwritten([window(10, 20, topic_id="another")], written)
