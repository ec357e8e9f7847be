"""``verify``: what is damaged, missing or odd in a bucket, and what that means for readers."""

from __future__ import annotations

from tieredstore.ops.verification.findings import Finding, FindingKind, KindFacts, Severity
from tieredstore.ops.verification.subject import Level
from tieredstore.ops.verification.verification import CheckedSegment, verify

__all__ = ["CheckedSegment", "Finding", "FindingKind", "KindFacts", "Level", "Severity", "verify"]
