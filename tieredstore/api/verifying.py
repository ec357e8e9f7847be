"""Verification of a bucket: what was checked, and the findings.

The bucket imports this module on first use, because it needs all the checks.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from tieredstore.api.rows import Table
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.model import AtTime, Uuid
from tieredstore.ops.brokers import MetadataTopic
from tieredstore.ops.listing import load_stream, within
from tieredstore.ops.verification.brokers import BrokersBelief
from tieredstore.ops.verification.findings import Finding as Found
from tieredstore.ops.verification.findings import Severity
from tieredstore.ops.verification.selection import Level as OfLevel
from tieredstore.ops.verification.selection import Sample, Selection
from tieredstore.ops.verification.state import VerifyState
from tieredstore.ops.verification.verification import verify
from tieredstore.query.arguments import check_callback

if TYPE_CHECKING:
    from datetime import timedelta

    from tieredstore.api.scopes import Scopes
    from tieredstore.catalog.listing import Scope, SegmentObjects
    from tieredstore.ops.bucket import Bucket as OpenBucket
    from tieredstore.ops.verification.verification import CheckedSegment

Level: TypeAlias = Literal["listing", "index", "data"]
"""The level of checks. ``listing`` checks keys and manifests, ``index`` also every index, and ``data`` also every
byte."""

_LEVELS: Final = tuple(level.value for level in OfLevel)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: its severity, its effect on readers, and what to do.

    ``object`` is a key of the store. The problem affects the object's bytes from ``first_byte`` up to ``stop_byte``,
    and the log's offsets from ``first_offset`` to ``last_offset``.
    """

    severity: str
    kind: str
    topic: str
    topic_id: Uuid
    partition: int
    base_offset: int | None
    segment_id: Uuid | None
    object: str | None
    first_byte: int | None
    stop_byte: int | None
    first_offset: int | None
    last_offset: int | None
    detail: str
    meaning: str
    advice: str

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition} ({self.topic_id})" if self.object is None else self.object
        bytes_of = "" if self.first_byte is None else f" bytes {self.first_byte}:{self.stop_byte}"
        kind = " ".join(dict.fromkeys((f"{self.severity}:", f"{self.kind}:")))
        return f"{kind} {where}{bytes_of}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification: the findings, and how much was examined.

    ``segments`` is the number of examined segments; their logs have ``log_size`` bytes. ``passed_over`` is the number
    of segments that an earlier check found sound: only the existence of their objects was checked. ``manifests_read``
    counts segments with a readable manifest, and ``indexes_read`` segments whose indexes were checked.
    ``segments_read`` counts segments that were read completely, and ``log_read`` their bytes.

    ``severities`` counts findings by severity. ``findings`` is empty if the caller passed ``on_finding``.
    """

    level: Level
    segments: int = 0
    passed_over: int = 0
    manifests_read: int = 0
    indexes_read: int = 0
    segments_read: int = 0
    log_size: int = 0
    log_read: int = 0
    severities: Mapping[str, int] = field(default_factory=dict[str, int])
    findings: Table[Finding] = field(default_factory=Table[Finding])

    @property
    def is_sound(self) -> bool:
        """True if there are no findings except notices, which do not affect readers."""
        return not any(count for severity, count in self.severities.items() if severity != Severity.NOTICE.value)

    def with_segment(self, checked: CheckedSegment) -> Verification:
        """Return a copy of these sums that includes the segment."""
        return replace(
            self,
            segments=self.segments + 1,
            passed_over=self.passed_over + (checked.subject.level is None),
            manifests_read=self.manifests_read + (checked.subject.level is not None and checked.claimed is not None),
            indexes_read=self.indexes_read + checked.has_indexes,
            segments_read=self.segments_read + checked.is_read,
            log_size=self.log_size + checked.log_size,
            log_read=self.log_read + (checked.log_size if checked.is_read else 0),
        )


@dataclass(frozen=True, slots=True)
class Depth:
    """The level of checks, and the segments to check. Raises ConfigError for an invalid level or sample."""

    level: Level
    sample: float
    start: int | AtTime | None
    stop: int | AtTime | None
    state: Path | None
    recheck_after: timedelta
    parallel: int | None

    def __post_init__(self) -> None:
        level: object = self.level
        sample: Any = self.sample
        if level not in _LEVELS:
            raise ConfigError(f"level is {level!r:.60}; it must be {', '.join(_LEVELS)}")
        if type(sample) not in (int, float) or not 0 < sample <= 1:
            raise ConfigError(f"sample is {sample!r:.60}; give a fraction above 0, up to 1, such as 0.05")
        if sample != 1 and level == "listing":
            raise ConfigError("a sample applies to the levels index and data: choose one of these")

    def has_offsets(self, first: int, last: int) -> bool:
        """Return True if the selection may include these offsets. If the selection is by time, it may include any
        offset."""
        is_before = isinstance(self.start, int) and last < self.start
        return not is_before and not (isinstance(self.stop, int) and first >= self.stop)

    def narrow(
        self, opened: OpenBucket, listed: Iterator[SegmentObjects], *, is_only: bool
    ) -> Iterator[SegmentObjects]:
        """Yield the segments that, by their manifests, may have records between start and stop. If no other listing is
        verified (``is_only``), check that the start is not beyond the ends of all logs.
        """
        loaded = load_stream(opened.store, listed, rules=opened.manifest_rules)
        return (segment.objects for segment in within(loaded, self.start, self.stop, check_start=is_only))


def verify_segments(
    opened: OpenBucket,
    scopes: Scopes,
    depth: Depth,
    *,
    client: Mapping[str, str] | None,
    on_finding: Callable[[Finding], object] | None,
    on_segment: Callable[[Verification], object] | None,
) -> Verification:
    """Check the segments in scope. Raises ResourceNotFoundError if there are none, because nothing was verified
    then.
    """
    check_callback("on_finding", on_finding)
    check_callback("on_segment", on_segment)
    severities: Counter[str] = Counter({severity.value: 0 for severity in Severity})
    seen = Verification(depth.level, severities=severities)

    def tell(found: Iterable[Found]) -> None:
        for finding in map(convert_finding, found):
            severities[finding.severity] += 1
            (on_finding or seen.findings.append)(finding)

    chosen = list(scopes.of(opened.store, opened.prefix))
    with _open_brokers(client) as brokers:
        tell(() if brokers is None else brokers.read_on())
        with contextlib.closing(_check(opened, chosen, depth)) as checks:
            for checked in checks:
                tell(checked.findings)
                tell(() if brokers is None else brokers.belief.compare(checked))
                seen = seen.with_segment(checked)
                if on_segment is not None:
                    on_segment(seen)
        if brokers is not None:
            tell(brokers.read_on())
            tell(brokers.belief.rest(opened, chosen, depth.has_offsets))
    if not seen.segments and not severities.total():
        raise ResourceNotFoundError("no segments were found, so nothing was verified")
    return seen


def _check(opened: OpenBucket, scopes: Sequence[Scope], depth: Depth) -> Generator[CheckedSegment]:
    with contextlib.ExitStack() as closing:
        state = None
        if depth.state is not None:
            state = VerifyState(depth.state, opened.store.identity, opened.prefix, recheck_after=depth.recheck_after)
            closing.enter_context(state)
        sample = None if depth.sample == 1 else Sample(depth.sample)
        selection = Selection(OfLevel(depth.level), sample, state=state)
        is_narrow = (depth.start, depth.stop) != (None, None)
        narrow = partial(depth.narrow, opened, is_only=len(scopes) == 1) if is_narrow else None
        for scope in scopes:
            yield from verify(opened, scope, selection, parallel=depth.parallel, narrow=narrow)


class _Brokers(NamedTuple):
    """The brokers' metadata topic, and the state of the segments according to its records."""

    topic: MetadataTopic
    belief: BrokersBelief

    def read_on(self) -> Iterator[Found]:
        """Read new records of the metadata topic; yield the problems that they reveal."""
        return self.belief.take(self.topic.read_on())


@contextlib.contextmanager
def _open_brokers(client: Mapping[str, str] | None) -> Generator[_Brokers | None]:
    """Open the metadata topic of the brokers that the properties ``client`` name; None without a broker."""
    if client is None:
        yield None
        return
    from tieredstore.live import LiveReader  # noqa: PLC0415  needs the extra `kafka`

    with LiveReader(client, isolation="read_uncommitted") as reader, BrokersBelief() as belief:
        yield _Brokers(MetadataTopic(reader), belief)


def convert_finding(found: Found) -> Finding:
    """Return a finding of the checks in the form of the API."""
    where = found.partition
    first_byte, stop_byte = (None, None) if (span := found.byte_range) is None else (span.start, span.stop)
    first_offset, last_offset = found.offsets or (None, None)
    return Finding(
        found.kind.severity.value, found.kind.value, where.topic, where.topic_id, where.partition, found.start_offset,
        found.segment_id, found.object_key, first_byte, stop_byte, first_offset, last_offset, found.detail,
        found.kind.meaning, found.kind.advice,
    )  # fmt: skip
