"""Reads topics across bucket and broker: snapshots, windows, splits, tails. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.plan import SplitLimits, WindowSplit, plan_windows
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.snapshots import LogSnapshots
from tieredstore.reading.split_reads import LiveSplit, open_reader, read_live_split, read_record_split
from tieredstore.reading.tail import LogTail, TailRecords
from tieredstore.reading.unreadable import check_readable, named_partitions
from tieredstore.reading.window import read_window, start_of_last
from tieredstore.reading.windows import ending_offsets, offset_windows, starting_offsets

__all__ = [
    "LiveSplit",
    "LogQuery",
    "LogSnapshot",
    "LogSnapshots",
    "LogTail",
    "QueryWords",
    "SplitLimits",
    "TailRecords",
    "WindowSplit",
    "check_readable",
    "ending_offsets",
    "named_partitions",
    "offset_windows",
    "open_reader",
    "plan_windows",
    "read_live_split",
    "read_record_split",
    "read_window",
    "start_of_last",
    "starting_offsets",
]
