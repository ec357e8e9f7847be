"""Reads topics from bucket and broker as one log: snapshots, windows, splits, tails. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import Losses
from tieredstore.reading.plan import SplitLimits, WindowSplit, plan_windows
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.split_reads import LiveSplit, open_reader
from tieredstore.reading.tail import LogTail, TailRecords

__all__ = [
    "LiveSplit",
    "LogQuery",
    "LogSnapshot",
    "LogSnapshots",
    "LogTail",
    "Losses",
    "QueryWords",
    "SplitLimits",
    "TailRecords",
    "TopicReader",
    "WindowSplit",
    "open_reader",
    "plan_windows",
]
