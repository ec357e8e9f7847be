"""``tieredstore verify``: what is damaged, missing or odd in a bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tieredstore.cli.arguments import (
    Json,
    OnlyPartition,
    OnlyTopic,
    SettingsPath,
    StoreUrl,
    TopicId,
    chosen_scope,
)
from tieredstore.cli.last_words import said_if_stopped
from tieredstore.cli.opened import opened
from tieredstore.cli.output import JsonValue, print_json_line, print_lines
from tieredstore.cli.progress import counting
from tieredstore.errors import ResourceNotFound
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.ops.verification import CheckedSegment, Finding, FindingKind, Severity


def verify(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    level: Annotated[
        Literal["listing", "index", "data"],
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="How deep: the listing and the manifests (listing), every index too (index), every byte (data).",
        ),
    ] = "listing",
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            metavar="N",
            min=1,
            max=256,
            help="So many segments at once.",
            show_default="16, of level data 4",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the segments of a bucket, and how they follow each other; nothing is changed.

    Each finding is a line: how bad it is, what it is, which bytes of which object. Ends with 4 if something is damaged,
    with 3 if there are only gaps or something is missing. Levels index and data need the private keys.

    Example: tieredstore verify -c store.properties --level data --topic events
    """
    from tieredstore.ops.verification import Level  # noqa: PLC0415  loads cryptography
    from tieredstore.ops.verification import verify as verify_bucket  # noqa: PLC0415

    scope = chosen_scope(topic, topic_id, partition)
    report = Report(level, as_json=as_json)
    with (
        opened(settings, store) as bucket,
        said_if_stopped(lambda: f"stopped; {report.sentence()}"),
        counting("verifying", "segments") as advance,
    ):
        for checked in verify_bucket(bucket, scope, level=Level(level), parallel=parallel):
            report.take(checked)
            advance()
    report.finish()
    if not report.segments:
        whose = "" if topic is None else f" of topic {topic}"
        raise ResourceNotFound(f"no segments{whose} were found, so that nothing was verified")
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@dataclass(slots=True)
class Report:
    """Tells findings as they come, and sums them up."""

    level: str
    as_json: bool
    segments: int = 0
    log_bytes: int = 0
    kinds: Counter[FindingKind] = field(default_factory=Counter["FindingKind"])

    def take(self, checked: CheckedSegment) -> None:
        """One more segment."""
        self.segments += 1
        self.log_bytes += checked.log_size
        for finding in checked.findings:
            self.tell(finding)

    def tell(self, finding: Finding) -> None:
        """One more finding."""
        self.kinds[finding.kind] += 1
        if self.as_json:
            print_json_line(finding_row(finding))
        else:
            print_lines([str(finding)])

    @property
    def severities(self) -> Mapping[Severity, int]:
        """How many findings of each."""
        counts: Counter[Severity] = Counter()
        for kind, count in self.kinds.items():
            counts[kind.facts.severity] += count
        return counts

    @property
    def exit_code(self) -> int:
        """That of the worst finding."""
        return max((severity.exit_code for severity in self.severities), default=0)

    def sentence(self) -> str:
        """What was done so far."""
        from tieredstore.ops.verification import Severity  # noqa: PLC0415

        counts = self.severities
        worst = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity if severity in counts)
        size = human_bytes(self.log_bytes)
        return f"{self.segments} segments ({size} of log) checked at level {self.level}: {worst or 'nothing to tell'}"

    def finish(self) -> None:
        """The sums, and what each kind of finding means and asks for."""
        from tieredstore.ops.verification import FindingKind, Severity  # noqa: PLC0415

        if self.as_json:
            counts: dict[str, JsonValue] = {severity.value: self.severities.get(severity, 0) for severity in Severity}
            sums: dict[str, JsonValue] = {"segments": self.segments, "log_size": self.log_bytes, "level": self.level}
            print_json_line({"summary": sums | counts})
            return
        print_lines([self.sentence()])
        for kind in (kind for kind in FindingKind if kind in self.kinds):
            print_lines([f"  {kind.value} ({self.kinds[kind]}): {kind.facts.meaning}", f"    do: {kind.facts.advice}"])


def finding_row(finding: Finding) -> dict[str, JsonValue]:
    """A finding as JSON."""
    extent = finding.byte_range
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
        "first_offset": None if finding.offsets is None else finding.offsets[0],
        "last_offset": None if finding.offsets is None else finding.offsets[1],
        "detail": finding.detail,
        "meaning": finding.meaning,
        "advice": finding.advice,
    }
