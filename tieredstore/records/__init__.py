"""Records of a topic from the bucket, by offset or by time, as Arrow. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.model import AtTime, Isolation
from tieredstore.records.partition import PartitionRead
from tieredstore.records.report import LostOffsets, ReadReport, SkippedInSegment, Undecided
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.records.splits import RecordSplit, SplitPlan, SplitSection, decided_end, plan_splits, read_split
from tieredstore.records.topic_records import RecordReader, read_records

__all__ = [
    "AtTime",
    "Isolation",
    "LostOffsets",
    "OnDataLoss",
    "PartitionRead",
    "ReadReport",
    "ReadSettings",
    "RecordReader",
    "RecordSplit",
    "SkippedInSegment",
    "SplitPlan",
    "SplitSection",
    "Undecided",
    "decided_end",
    "plan_splits",
    "read_records",
    "read_split",
]
