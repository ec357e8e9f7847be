"""``tieredstore verify``: what is damaged, missing or odd in a bucket."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tieredstore.catalog.absence import absence
from tieredstore.cli.app.arguments import (
    Json,
    OnlyPartition,
    OnlyTopic,
    SettingsPath,
    StoreUrl,
    TopicId,
    choose_scope,
)
from tieredstore.cli.app.broker_options import KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.durations import parse_since_ms
from tieredstore.cli.terminal.output import JsonValue, counted, human_share, print_json_line, print_lines
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.errors import ConfigError, ResourceNotFoundError, excerpt
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.ops.verification import (
        BrokersBelief,
        CheckedSegment,
        Finding,
        FindingKind,
        MetadataTopic,
        Severity,
    )

_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%?", re.ASCII)


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
            help="Segments in parallel.",
            show_default="16, of level data 4",
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample", metavar="PERCENT", help="Levels index and data for this part of the segments only: 5%."
        ),
    ] = None,
    seed: Annotated[
        str, typer.Option("--seed", metavar="TEXT", help="Another sample; the same text chooses the same segments.")
    ] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only what was copied since: 36h, 7d, or a date and time."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "--state", metavar="FILE", help="Only what FILE does not know to be sound; FILE is kept up to date."
        ),
    ] = None,
    recheck_days: Annotated[
        int, typer.Option("--recheck-days", metavar="DAYS", min=1, help="With --state: check again after so long.")
    ] = 30,
    metadata_topic: Annotated[
        str | None,
        typer.Option(
            "--metadata-topic",
            metavar="HOST:PORT",
            help="Compare with what these brokers believe, by their __remote_log_metadata.",
        ),
    ] = None,
    kafka_config: KafkaConfig = None,
    kafka_property: KafkaProperties = None,
    as_json: Json = False,
) -> None:
    """Check the segments of a bucket, and how they follow each other; nothing is changed.

    Each finding is a line: how bad it is, what it is, which bytes of which object. Ends with 4 if something is damaged,
    with 3 if there are only gaps or something is missing. Levels index and data need the private keys.

    Example: tieredstore verify -c store.properties --level data --topic events
    """
    from tieredstore.ops.verification import (
        Level,
        Sample,
        Selection,
        VerifyState,
    )
    from tieredstore.ops.verification import verify as verify_bucket

    scope = choose_scope(topic, topic_id, partition)
    chosen = Sample(percent(sample), seed) if sample is not None else None
    since_ms = None if since is None else parse_since_ms("--since", since, time.time_ns() // 1_000_000)
    selection = Selection(Level(level), chosen, since_ms)
    client = client_properties(metadata_topic, kafka_config, kafka_property)
    report = Report(level, as_json=as_json)
    with open_chosen_bucket(settings, store) as bucket, contextlib.ExitStack() as closing:
        bucket.refuse_raw("verify", "it has neither manifests nor the indexes that would be held against each other")
        if state is not None:
            identity = bucket.store.identity
            kept = closing.enter_context(VerifyState(state, identity, bucket.prefix, recheck_days=recheck_days))
            selection = dataclasses.replace(selection, state=kept)
        closing.enter_context(tell_if_stopped(lambda: f"stopped; {report.sentence()}"))
        brokers = None if client is None else closing.enter_context(open_brokers(client))
        if brokers is not None:
            report.tell_all(brokers.read_on())
        advance = closing.enter_context(counting("verifying", "segments"))
        for checked in verify_bucket(bucket, scope, selection, parallel=parallel):
            report.take(checked)
            if brokers is not None:
                report.tell_all(brokers.belief.compare(checked))
            advance()
        if brokers is not None:
            report.tell_all(brokers.read_on())
            report.tell_all(brokers.belief.rest(bucket, scope))
        if not report.segments and topic is not None and not report.kinds:
            asked = [] if partition is None else [partition]
            raise absence(bucket.store, bucket.prefix, {topic: asked}, topic_id=scope.topic_id)
    report.finish()
    if not report.segments and not report.kinds:
        raise ResourceNotFoundError("no segments were found, so that nothing was verified")
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers' metadata topic, and what its records came to."""

    topic: MetadataTopic
    belief: BrokersBelief

    def read_on(self) -> Iterator[Finding]:
        """Take what was not read before."""
        return self.belief.take(self.topic.read_on())


@contextlib.contextmanager
def open_brokers(client: Mapping[str, str]) -> Generator[Brokers]:
    """What the brokers that a client's properties name believe."""
    from tieredstore.live import LiveReader
    from tieredstore.ops.verification import BrokersBelief, MetadataTopic

    with LiveReader(client, isolation="read_uncommitted") as reader, BrokersBelief() as belief:
        yield Brokers(MetadataTopic(reader), belief)


def percent(text: str) -> float:
    """The part that ``5%`` or ``5`` is; ConfigError for what is no number."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--sample is {excerpt(text)!r}: give a percentage, as 5%")
    return float(match[1]) / 100


@dataclass(slots=True)
class Report:
    """Tells findings as they come, and sums them up."""

    level: str
    as_json: bool
    segments: int = 0
    passed_over: int = 0
    indexes_read: int = 0
    segments_read: int = 0
    log_bytes: int = 0
    log_read: int = 0
    kinds: Counter[FindingKind] = field(default_factory=Counter["FindingKind"])

    def take(self, checked: CheckedSegment) -> None:
        """One more segment."""
        self.segments += 1
        self.log_bytes += checked.log_size
        if checked.level is None:
            self.passed_over += 1
        elif checked.level != "listing":
            self.indexes_read += 1
        if checked.is_read:
            self.segments_read += 1
            self.log_read += checked.log_size
        for finding in checked.findings:
            self.tell(finding)

    def tell_all(self, findings: Iterable[Finding]) -> None:
        """Findings beside those of segments."""
        for finding in findings:
            self.tell(finding)

    def tell(self, finding: Finding) -> None:
        """One more finding."""
        from tieredstore.ops.verification import finding_row

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
        from tieredstore.ops.verification import Severity

        counts = self.severities
        worst = ", ".join(f"{counts[severity]} {severity.value}" for severity in Severity if severity in counts)
        passed = f"; {self.passed_over} passed over as old or known" if self.passed_over else ""
        return f"{self._reading()}{passed}: {worst or 'no problems found'}"

    def _reading(self) -> str:
        """What was read: a level says how deep, and a sample reads less."""
        segments = counted(self.segments, "segment")
        if self.level == "data":
            return f"{self.segments_read} of {segments} read in full ({human_share(self.log_read, self.log_bytes)})"
        size = human_bytes(self.log_bytes)
        if self.level == "index":
            return f"indexes of {self.indexes_read} of {segments} read, and no log in full ({size})"
        return f"manifests of {segments} read, and no log ({size})"

    def finish(self) -> None:
        """The sums, and what each kind of finding means and asks for."""
        from tieredstore.ops.verification import FindingKind, Severity

        if self.as_json:
            counts: dict[str, JsonValue] = {severity.value: self.severities.get(severity, 0) for severity in Severity}
            sums: dict[str, JsonValue] = {
                "segments": self.segments,
                "passed_over": self.passed_over,
                "indexes_read": self.indexes_read,
                "segments_read": self.segments_read,
                "log_size": self.log_bytes,
                "log_read": self.log_read,
                "level": self.level,
            }
            print_json_line({"summary": sums | counts})
            return
        print_lines([self.sentence()])
        for kind in (kind for kind in FindingKind if kind in self.kinds):
            print_lines([f"  {kind.value} ({self.kinds[kind]}): {kind.facts.meaning}", f"    do: {kind.facts.advice}"])
