"""``tieredstore verify``: find corrupt, missing or suspicious data in a bucket."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tieredstore.api.verifying import Finding, Verification
from tieredstore.cli.app.options import Cluster, FromTo, Json, Store, Topics, Work
from tieredstore.cli.terminal.output import JsonValue, human_share, print_json_line, print_lines, quantity
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import Row, attributes_of
from tieredstore.errors import ConfigError, excerpt
from tieredstore.model import human_bytes
from tieredstore.ops.verification.findings import FindingKind, Severity
from tieredstore.query.positions import duration_of

if TYPE_CHECKING:
    from tieredstore.api.verifying import Level

_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%?", re.ASCII)
_RECHECK_AFTER: Final = "30d"
_FINDING: Final[Row[Finding]] = attributes_of(Finding)
_SEEN: Final[Row[Verification]] = attributes_of(Verification, "severities", "findings")


def verify(
    topics: Topics,
    store: Store,
    cluster: Cluster,
    level: Annotated[
        Literal["listing", "index", "data"],
        typer.Option(
            "--level",
            metavar="LEVEL",
            help=(
                "Depth of the check: listing (keys and manifests), index (also every index), data (also every byte "
                "of the logs)."
            ),
        ),
    ] = "listing",
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample",
            metavar="PERCENT",
            help="With level index or data: check only a random share of the indexes and logs, such as 5%.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="Skip segments that FILE records as sound; update FILE."),
    ] = None,
    recheck_after: Annotated[
        str,
        typer.Option(
            "--recheck-after",
            metavar="AGE",
            help="With --state: check a segment again after this time, such as 24h or 7d.",
        ),
    ] = _RECHECK_AFTER,
    *,
    window: FromTo,
    work: Work,
    output: Json,
) -> None:
    """Check the segments of a bucket and look for missing offsets between them; nothing is changed.

    Each line is a finding: its severity, its kind, and the affected bytes of an object. The exit code is 4 if something
    is damaged, 3 if there are only gaps or something is missing. Levels index and data need the private keys. With
    --bootstrap-server, the brokers' records about segments (__remote_log_metadata) are compared too.

    Example: tieredstore verify -c store.properties --level data events
    """
    window.check_order()
    part = 1.0 if sample is None else percent(sample)
    recheck = duration_of("--recheck-after", recheck_after)
    if state is None and recheck_after != _RECHECK_AFTER:
        raise ConfigError("--recheck-after applies to segments in a state file: give --state too")
    report = Report(level, window.json(), as_json=output.as_json)
    with (
        store.open(cluster, is_all=not topics.names) as bucket,
        tell_if_stopped(lambda: f"stopped; {report.sentence()}"),
        counting("verifying", "segment") as advance,
    ):

        def take(seen: Verification) -> None:
            report.seen = seen
            advance()

        report.seen = bucket.verify(
            *topics.names, level=level, sample=part, start=window.first, stop=window.end, state=state,
            recheck_after=recheck, on_finding=report.tell, on_segment=take, **topics.which(work),
        )  # fmt: skip
    report.finish()
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _count(number: int, severity: Severity) -> str:
    is_countable = severity in {Severity.GAP, Severity.NOTICE}
    return quantity(number, severity.value) if is_countable else f"{number} {severity.value}"


def percent(text: str) -> float:
    """Parse a share such as ``5%`` or ``5``. Raise ConfigError unless it is above 0 and at most 100."""
    match = _PERCENT.fullmatch(text.strip())
    part = float(match[1]) / 100 if match else 0
    if not 0 < part <= 1:
        raise ConfigError(f"--sample is {excerpt(text)!r}: give a percentage such as 5%")
    return part


class Report:
    """Reports each finding as soon as it is known, and prints the sums at the end."""

    def __init__(self, level: Level, window: Mapping[str, JsonValue], *, as_json: bool) -> None:
        self.seen = Verification(level)
        self._window = window
        self._as_json = as_json
        self._counts: Counter[str] = Counter()

    def tell(self, finding: Finding) -> None:
        """Report a finding."""
        self._counts[finding.kind] += 1
        if self._as_json:
            print_json_line(_FINDING.json(finding))
        else:
            print_lines([str(finding)])

    @property
    def _kinds(self) -> list[FindingKind]:
        return [kind for kind in FindingKind if kind in self._counts]

    @property
    def exit_code(self) -> int:
        """The exit code of the worst finding."""
        return max((kind.severity.exit_code for kind in self._kinds), default=0)

    def sentence(self) -> str:
        """Return a sentence about what was checked so far."""
        counts: Counter[Severity] = Counter()
        for kind in self._kinds:
            counts[kind.severity] += self._counts[kind]
        worst = ", ".join(_count(counts[severity], severity) for severity in Severity if severity in counts)
        passed = (
            f"; {self.seen.passed_over} skipped, which the state file records as sound" if self.seen.passed_over else ""
        )
        return f"{self._describe_reads()}{passed}: {worst or 'no problems found'}"

    def _describe_reads(self) -> str:
        """Return a phrase about what was read: how many manifests, indexes or logs."""
        seen, segments = self.seen, quantity(self.seen.segments, "segment")
        if seen.level == "data":
            return f"{seen.segments_read} of {segments} read in full ({human_share(seen.log_read, seen.log_size)})"
        size = human_bytes(seen.log_size)
        if seen.level == "index":
            return f"indexes of {seen.indexes_read} of {segments} read, but no log in full ({size})"
        return f"manifests of {seen.manifests_read} of {segments} read, but no log ({size})"

    def finish(self) -> None:
        """Print the sums. For each kind of finding, print its meaning and what to do."""
        if self._as_json:
            print_json_line({"summary": {**_SEEN.json(self.seen), **self._window, **self.seen.severities}})
            return
        print_lines([self.sentence()])
        for kind in self._kinds:
            print_lines([f"  {kind.value} ({self._counts[kind]}): {kind.meaning}", f"    do: {kind.advice}"])
