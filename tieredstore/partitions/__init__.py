"""One partition's log as a reader sees it: bucket and broker as one. Needs ``tieredstore[arrow]``, or ``[kafka]``."""

from __future__ import annotations

from tieredstore.partitions.live_window import LiveSplit, open_reader, read_live_split
from tieredstore.partitions.log_query import LogQuery, QueryWords
from tieredstore.partitions.log_snapshot import LogSnapshot
from tieredstore.partitions.log_tail import LogTail, TailRecords
from tieredstore.partitions.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    PartitionTimestamps,
    SpecificOffsets,
)
from tieredstore.partitions.partition_log import OffsetWindow, PartitionLog
from tieredstore.partitions.position import Position
from tieredstore.partitions.positions import ending_offsets, offset_windows, starting_offsets
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern
from tieredstore.partitions.snapshots import LogSnapshots
from tieredstore.partitions.split_plan import SplitLimits, WindowSplit, plan_windows
from tieredstore.partitions.stored_window import read_record_split
from tieredstore.partitions.unreadable import check_readable, named_partitions
from tieredstore.partitions.window import read_window, start_of_last

__all__ = [
    "Assign",
    "Earliest",
    "GlobalTimestamp",
    "Latest",
    "LiveSplit",
    "LogQuery",
    "LogSnapshot",
    "LogSnapshots",
    "LogTail",
    "OffsetSpec",
    "OffsetWindow",
    "PartitionLog",
    "PartitionTimestamps",
    "Position",
    "QueryWords",
    "Selection",
    "SpecificOffsets",
    "SplitLimits",
    "Subscribe",
    "SubscribePattern",
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
