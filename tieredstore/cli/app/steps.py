"""What a command that changes a bucket tells of its steps, and the one rule of those that delete or rewrite.

These show their plan, and only ``--yes`` applies it. Nobody is asked, on a terminal either: the same line does the same
in a shell, in a script and in cron.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, TextIO, TypeAlias

import typer

from tieredstore.backends.base import ObjectStore, admin_of
from tieredstore.cli.terminal.output import JsonValue, complain, counted, human_count, print_json_line, print_lines
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.streams import OutputFailedError
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.steps import Outcome

Report: TypeAlias = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Keep what --json would print in FILE too, behind what is there."),
]


class Teller:
    """Tells one step after the other."""

    def __init__(self, *, as_json: bool, report: TextIO | None) -> None:
        self._as_json = as_json
        self._report = report

    def tell(self, row: Mapping[str, JsonValue], *lines: str | None) -> None:
        """``row`` for scripts and the report; ``lines`` for a person, those in which there is anything to say."""
        if self._report is not None:
            with _writing(self._report.name):
                self._report.write(json.dumps(row) + "\n")
                self._report.flush()
        if self._as_json:
            print_json_line(row)
        else:
            print_lines(line for line in lines if line is not None)


@contextlib.contextmanager
def telling(*, as_json: bool, report: Path | None) -> Generator[Teller]:
    """A teller; OutputFailedError where the report cannot be written, before anything more is done."""
    if report is None:
        yield Teller(as_json=as_json, report=None)
        return
    with _writing(str(report)):
        file = report.open("a", encoding="utf-8")
    with file:
        yield Teller(as_json=as_json, report=file)


@dataclass(slots=True)
class Tally:
    """What the steps of a tool came to.

    ``done`` is the outcome that the tool is for, and ``verb`` what a person calls it; ``left`` says in words what else
    may become of a ``noun``. Summaries for scripts have ``done`` and then these, unless ``named`` has another order.
    """

    done: Outcome
    left: Mapping[Outcome, str]
    noun: str
    verb: str = "deleted"
    named: tuple[Outcome, ...] = ()
    _: KW_ONLY
    dry_run: bool
    counts: Counter[Outcome] = field(default_factory=Counter[Outcome])
    size: int = 0
    unsized: int = 0

    def add(self, outcome: Outcome, size: int | None = 0) -> None:
        """Count a step, and the bytes of what is done; None is a size that the store does not tell."""
        self.counts[outcome] += 1
        if outcome is self.done:
            self.size += size or 0
            self.unsized += size is None

    @contextlib.contextmanager
    def working(self, doing: str, unit: str) -> Generator[Callable[[], None]]:
        """What to call for each step; where a signal ends the command it says how far it came."""
        with (
            tell_if_stopped(lambda: f"stopped; {self.sentence()}; run again to go on"),
            counting("checking" if self.dry_run else doing, unit) as advance,
        ):
            yield advance

    def verb_of(self, outcome: Outcome) -> str:
        """``deleted``, ``would be deleted``, ``held``."""
        return f"would be {outcome}" if self.dry_run and outcome.is_change else outcome.value

    def sentence(self) -> str:
        """How much is done, and its bytes."""
        count = self.counts[self.done]
        done = f"{counted(count, self.noun)} {'would be ' if self.dry_run else ''}{self.verb}"
        unknown = f", and {human_count(self.unsized)} whose size the store does not tell" if self.unsized else ""
        return f"{done} ({human_bytes(self.size)}{unknown})" if count else done

    def left_alone(self) -> str:
        """What became of the others, in words; nothing if there are none."""
        return "; ".join(
            f"{self.counts[outcome]} {words}" for outcome, words in self.left.items() if self.counts[outcome]
        )

    def by_name(self) -> dict[str, JsonValue]:
        """How many there are of each outcome, for scripts."""
        return {outcome.value: self.counts[outcome] for outcome in self.named or (self.done, *self.left)}

    def tell_deleted(self, teller: Teller, store: ObjectStore, sentence: str | None = None) -> None:
        """How a deletion ended: a summary for scripts; for a person a ``sentence``, and what was left alone."""
        count, left = self.counts[self.done], self.left_alone()
        summary: dict[str, JsonValue] = {**self.by_name(), "stored_size": self.size, "dry_run": self.dry_run}
        summary["stays"] = say_what_stays(store) if count else []
        teller.tell(
            {"summary": summary},
            sentence or self.sentence(),
            f"left alone: {left}" if left else None,
            way_to_apply("deleted") if self.dry_run and count else None,
        )


def say_what_stays(store: ObjectStore) -> list[JsonValue]:
    """What a deletion does not free, on stderr; the same for scripts."""
    sentences = list(admin_of(store).kept_after_delete())
    for sentence in sentences:
        complain(sentence)
    return [*sentences]


@contextlib.contextmanager
def _writing(name: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OutputFailedError(f"the report {name} cannot be written: {error.strerror}") from error


Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without it, only show what would be done.")]


def is_dry_run(*, yes: bool, dry_run: bool = False) -> bool:
    """Return whether the command only shows its plan; raise ConfigError for both options at once."""
    if yes and dry_run:
        raise ConfigError("--yes and --dry-run exclude each other")
    return not yes


def way_to_apply(done: str) -> str:
    """Return the last line of a plan, which names what was not ``done`` and the way to do it."""
    return f"nothing was {done}: --yes does it"
