"""``verify``: finds damaged, missing and unusual objects in a bucket, and says what they mean for readers."""

from __future__ import annotations

from tieredstore.ops.brokers import MetadataTopic
from tieredstore.ops.verification.brokers import BrokersBelief
from tieredstore.ops.verification.findings import ROW_COLUMNS, Finding, FindingKind, Severity, finding_row
from tieredstore.ops.verification.parts import VerifyPart, plan_parts, verify_part
from tieredstore.ops.verification.selection import Sample, Selection
from tieredstore.ops.verification.state import VerifyState
from tieredstore.ops.verification.subject import Level
from tieredstore.ops.verification.verification import CheckedSegment, verify

__all__ = [
    "ROW_COLUMNS",
    "BrokersBelief",
    "CheckedSegment",
    "Finding",
    "FindingKind",
    "Level",
    "MetadataTopic",
    "Sample",
    "Selection",
    "Severity",
    "VerifyPart",
    "VerifyState",
    "finding_row",
    "plan_parts",
    "verify",
    "verify_part",
]
