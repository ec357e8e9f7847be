"""Findings as rows of plain values: for JSON and for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.ops.verification.findings import Finding

ROW_COLUMNS: Final[Mapping[str, type[str | int]]] = {
    "severity": str,
    "kind": str,
    "topic": str,
    "topic_id": str,
    "partition": int,
    "base_offset": int,
    "segment_id": str,
    "object": str,
    "first_byte": int,
    "stop_byte": int,
    "first_offset": int,
    "last_offset": int,
    "detail": str,
    "meaning": str,
    "advice": str,
}
"""The columns of a row, and what each holds where it is not None."""


def finding_row(finding: Finding) -> dict[str, str | int | None]:
    """A finding's row."""
    extent, offsets = finding.byte_range, finding.offsets
    return {
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "topic": finding.partition.topic,
        "topic_id": str(finding.partition.topic_id),
        "partition": finding.partition.partition,
        "base_offset": finding.start_offset,
        "segment_id": None if finding.segment_id is None else str(finding.segment_id),
        "object": finding.object_key,
        "first_byte": None if extent is None else extent.start,
        "stop_byte": None if extent is None else extent.stop,
        "first_offset": None if offsets is None else offsets[0],
        "last_offset": None if offsets is None else offsets[1],
        "detail": finding.detail,
        "meaning": finding.meaning,
        "advice": finding.advice,
    }
