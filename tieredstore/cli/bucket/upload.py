"""``tieredstore upload``: copy the closed segments on a broker's disk into the store."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import DryRun, Json, Store, Topics, Work
from tieredstore.cli.app.outcomes import OUTCOME, Teller, Words, finish, totals_of
from tieredstore.cli.terminal.output import complain, human_rate, human_ratio, print_json_line, print_lines
from tieredstore.cli.terminal.progress import progress, tell_if_stopped
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.api.copying import DiskSegments


def upload(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A log directory, a topic-partition directory, or one .log file.")
    ],
    topics: Topics,
    store: Store,
    broker_id: Annotated[
        int | None,
        typer.Option("--broker-id", min=0, metavar="N", help="Id of the broker, if not the id in meta.properties."),
    ] = None,
    *,
    work: Work,
    dry_run: DryRun = False,
    output: Json,
) -> None:
    """Copy the closed segments on a broker's disk into the store; skip segments that are already there.

    You can stop upload at any time and run it again. A segment counts as copied once its manifest exists. The next run
    copies the other segments. The active segment of a partition is skipped. If a segment cannot be copied, upload
    continues with the next one. If the store fails, upload stops. --topic-id replaces the id in partition.metadata.

    Example: tieredstore upload -c store.properties /var/lib/kafka/data --dry-run
    """
    with store.open() as bucket, contextlib.ExitStack() as shown:
        teller = _Teller(_WORDS, output.as_json, dry_run=dry_run, directory=directory)
        totals, failure = totals_of(
            lambda: bucket.upload(
                directory, *topics.names, broker_id=broker_id, dry_run=dry_run, on_outcome=teller.tell,
                on_found=lambda wanted: teller.begin(wanted, shown), on_progress=teller.advance,
                **topics.which(work, of_all=True),
            )
        )  # fmt: skip
        teller.end_repetition()
        shown.close()
        finish(teller, totals, failure, [])


@dataclass(slots=True)
class _Teller(Teller):
    """Reports failed segments on stderr. Reports the other segments on stdout if no progress bar is shown.

    An error that repeats for consecutive segments of a partition is reported once, with the count at the end.
    """

    bar: Callable[[int], object] = int
    expected: int = 0
    log_size: int = 0
    started: float = field(default_factory=time.monotonic)
    directory: Path = field(default_factory=Path)
    error: tuple[str | None, int | None, str] | None = None
    repeated: list[Outcome] = field(default_factory=list[Outcome])

    def begin(self, wanted: DiskSegments, shown: contextlib.ExitStack) -> None:
        """Show the progress through the segments on the disk, until ``shown`` is closed."""
        self.expected = len(wanted.found)
        shown.enter_context(tell_if_stopped(self.describe_stop))
        self.bar = shown.enter_context(progress("upload", wanted.size))

    def advance(self, size: int) -> None:
        """Advance the progress bar by bytes."""
        self.bar(size)

    def tell(self, outcome: Outcome) -> None:
        """Report a segment."""
        self.note(outcome)
        self.log_size += (outcome.size or 0) * (outcome.status in ("planned", "done"))
        self.more = {"size": self.log_size, "seconds": round(time.monotonic() - self.started, 3)}
        if outcome.code == "there":
            self.advance(outcome.size or 0)
        if self.as_json:
            print_json_line(OUTCOME.json(outcome))
        if outcome.error is None:
            self.end_repetition()
            # If both streams are terminals, the progress bar on stderr is enough: print no line.
            if not self.as_json and (outcome.name is not None or not (sys.stderr.isatty() and sys.stdout.isatty())):
                print_lines([_line(outcome, self.verb_of(outcome))])
            return
        error = (outcome.topic, outcome.partition, str(outcome.error))
        if error == self.error:
            self.repeated.append(outcome)
            return
        self.end_repetition()
        self.error = error
        complain(_line(outcome, "failed"))

    def end_repetition(self) -> None:
        """Report how many more segments failed with the last error."""
        repeated, self.repeated, self.error = self.repeated, [], None
        if repeated:
            first, last = repeated[0], repeated[-1]
            where = _segment(first) + (f" to {last.base_offset}" if last is not first else "")
            complain(f"{'failed':<10} {where}: the same ({len(repeated)} more segments)")

    def describe_stop(self) -> str:
        """Return the progress without sizes, because there is no time to compute sizes after a signal."""
        skipped = f", {self.counts['there']} skipped" if self.counts["there"] else ""
        return f"stopped; {self.counts['copied']} of {self.expected} copied{skipped}; {self.words.again}"

    def sentence(self) -> str:
        """Return a sentence with the numbers of segments by result, and the speed."""
        if not self.counts.keys() - _NOT_CLOSED:
            left = ", ".join(f"{self.counts[code]} {_LEFT[code]}" for code in _LEFT if self.counts[code])
            return f"nothing to upload in {self.directory}: no closed segment{f' ({left})' if left else ''}"
        verbs = {"copied": "would be copied" if self.dry_run else "copied", **_LEFT}
        done = ", ".join(f"{self.counts[code]} {verb}" for code, verb in verbs.items() if self.counts[code])
        rate = human_rate(self.log_size, time.monotonic() - self.started)
        ratio = f"ratio {human_ratio(self.log_size, self.size)}, {rate}"
        sizes = f" ({human_bytes(self.log_size)} as {human_bytes(self.size)}, {ratio})" if self.size else ""
        return (done or "0 copied") + sizes


def _line(outcome: Outcome, verb: str) -> str:
    if outcome.name is not None:
        return f"left alone {outcome.name}: {outcome.reason}"
    return f"{_LEFT.get(outcome.code, verb):<10} {_segment(outcome)}{_detail(outcome)}"


def _segment(outcome: Outcome) -> str:
    return f"{outcome.topic}-{outcome.partition} at offset {outcome.base_offset}"


def _detail(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f": {outcome.error}"
    if outcome.size is None:
        return ""
    size = f": {human_bytes(outcome.size)}"
    if outcome.code == "there":
        return f"{size}, committed already as segment {outcome.segment_id}"
    if outcome.stored_size is None:
        return size
    return f"{size} as {human_bytes(outcome.stored_size)}, ratio {human_ratio(outcome.size, outcome.stored_size)}"


_LEFT: Final = {
    "there": "skipped",
    "active": "active",
    "gone": "gone",
    "left_alone": "left alone",
    "failed": "failed",
    "not_tried": "not tried",
}
_NOT_CLOSED: Final = {"active", "gone", "left_alone"}
"""Outcome codes of files on disk that are not closed segments."""
_WORDS: Final = Words(noun="segment", done="copied", doing="uploading", show=_line, left={}, only_adds=True)
