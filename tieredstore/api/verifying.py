"""What a verification of a bucket read, and what it found.

It lies apart from the bucket, which imports it once it is asked for: it needs all that checks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tieredstore.api.tables import Table
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import Uuid
from tieredstore.ops.verification import Finding as Found
from tieredstore.ops.verification import FindingKind, Sample, Selection, Severity, VerifyState
from tieredstore.ops.verification import Level as Depth
from tieredstore.ops.verification import verify as verify_bucket

if TYPE_CHECKING:
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.bucket import Bucket as OpenBucket

Level: TypeAlias = Literal["listing", "index", "data"]
"""How deep: listing and manifests, every index too, or every byte."""

_LEVELS: Final = tuple(level.value for level in Depth)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: how bad it is, what it means for readers, and what to do.

    ``object`` is a key of the store, and ``byte_range`` (half-open) what of it is meant.
    """

    severity: str
    kind: str
    topic: str
    topic_id: Uuid
    partition: int
    base_offset: int | None
    segment_id: Uuid | None
    object: str | None
    byte_range: tuple[int, int] | None
    detail: str
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was read, and what was found; only what is counted here was looked at.

    Of ``segments``, whose logs have ``log_size`` bytes, ``passed_over`` are known to be sound, or old: only their
    objects were looked for. ``indexes_read`` had their indexes checked, ``segments_read`` every byte, ``log_read``.
    """

    level: Level
    segments: int = 0
    passed_over: int = 0
    indexes_read: int = 0
    segments_read: int = 0
    log_size: int = 0
    log_read: int = 0
    findings: Table[Finding] = field(default_factory=Table[Finding])

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found but notices, which readers do not notice."""
        return all(finding.severity == Severity.NOTICE.value for finding in self.findings)


def verify_segments(
    opened: OpenBucket,
    scopes: Scopes,
    level: Level,
    *,
    sample: float,
    state: Path | None,
    parallel: int | None,
    on_finding: Callable[[Finding], object] | None,
) -> Verification:
    """Check the segments in scope. ResourceNotFoundError where there are none: nothing was verified then."""
    sums: dict[str, int] = dict.fromkeys(
        ("segments", "passed_over", "indexes_read", "segments_read", "log_size", "log_read"), 0
    )
    findings: Table[Finding] = Table()
    with contextlib.ExitStack() as closing:
        kept = None
        if state is not None:
            kept = closing.enter_context(VerifyState(state, opened.store.identity, opened.prefix))
        selection = Selection(Depth(level), None if sample == 1 else Sample(sample), state=kept)
        for scope in scopes.of(opened.store, opened.prefix):
            for checked in verify_bucket(opened, scope, selection, parallel=parallel):
                sums["segments"] += 1
                sums["log_size"] += checked.log_size
                sums["passed_over"] += checked.level is None
                sums["indexes_read"] += checked.level not in (None, Depth.LISTING)
                sums["segments_read"] += checked.is_read
                sums["log_read"] += checked.log_size if checked.is_read else 0
                for found in map(_finding, checked.findings):
                    findings.append(found)
                    if on_finding is not None:
                        on_finding(found)
    if not sums["segments"] and not findings:
        raise ResourceNotFoundError("no segments were found, so that nothing was verified")
    return Verification(level, **sums, findings=findings)


def check_arguments(level: Any, sample: Any) -> None:
    """ConfigError for a level or a sample that there is not."""
    if level not in _LEVELS:
        raise ConfigError(f"level is {level!r:.60}; it must be {', '.join(_LEVELS)}")
    if type(sample) not in (int, float) or not 0 < sample <= 1:
        raise ConfigError(f"sample is {sample!r:.60}; give a part, as 0.05")
    if sample != 1 and level == "listing":
        raise ConfigError("a sample thins what the levels index and data read: choose one of these")


def _finding(found: Found) -> Finding:
    kind: FindingKind = found.kind
    where, span = found.partition, found.byte_range
    return Finding(
        found.severity.value, kind.value, where.topic, where.topic_id, where.partition, found.start_offset,
        found.segment_id, found.object_key, None if span is None else (span.start, span.stop), found.detail,
        found.meaning, found.advice,
    )  # fmt: skip
