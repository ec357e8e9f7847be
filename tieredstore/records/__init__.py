"""Records of a topic from the bucket, by offset or by time, as Arrow. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.records.partition import PartitionRead
from tieredstore.records.reader import AtTime, Place, RecordReader, read_records
from tieredstore.records.report import LostOffsets, ReadReport, SkippedInSegment, Undecided
from tieredstore.records.settings import Isolation, OnDataLoss, ReadSettings

__all__ = [
    "AtTime",
    "Isolation",
    "LostOffsets",
    "OnDataLoss",
    "PartitionRead",
    "Place",
    "ReadReport",
    "ReadSettings",
    "RecordReader",
    "SkippedInSegment",
    "Undecided",
    "read_records",
]
