"""What a command that changes a bucket tells of its steps, and the one rule of those that delete or rewrite.

These show their plan, and only ``--yes`` applies it. Nobody is asked, on a terminal either: the same line does the same
in a shell, in a script and in cron.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Annotated, TextIO, TypeAlias, TypeVar

import typer

from tieredstore.backends.base import ObjectStore, admin_of
from tieredstore.cli.terminal.output import JsonValue, complain, print_json_line, print_lines
from tieredstore.cli.terminal.streams import OutputFailed
from tieredstore.errors import ConfigError

Report: TypeAlias = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE", help="Keep what --json would print in FILE too, behind what is there."),
]

OutcomeT = TypeVar("OutcomeT", bound=enum.StrEnum)
"""The outcomes that one step of a tool may have."""


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
    """A teller; OutputFailed where the report cannot be written, before anything more is done."""
    if report is None:
        yield Teller(as_json=as_json, report=None)
        return
    with _writing(str(report)):
        file = report.open("a", encoding="utf-8")
    with file:
        yield Teller(as_json=as_json, report=file)


def tell_sum(
    teller: Teller,
    store: ObjectStore,
    outcomes: Mapping[OutcomeT, int],
    *,
    done: OutcomeT,
    freed: int,
    sentence: str,
    words: Mapping[OutcomeT, str],
    dry_run: bool,
) -> None:
    """How a deletion ended: a summary for scripts; for a person ``sentence``, and in ``words`` what was left alone.

    ``done`` is the outcome of what was deleted, or would be; all of its class are in the summary.
    """
    stays = say_what_stays(store) if outcomes.get(done) else []
    counts = {outcome.value: outcomes.get(outcome, 0) for outcome in type(done)}
    rest = [f"{outcomes[outcome]} {text}" for outcome, text in words.items() if outcomes.get(outcome)]
    lines = [sentence, *([f"left alone: {'; '.join(rest)}"] if rest else [])]
    if dry_run and outcomes.get(done):
        lines.append(way_to_apply("deleted"))
    summary: dict[str, JsonValue] = {**counts, "stored_size": freed, "dry_run": dry_run, "stays": stays}
    teller.tell({"summary": summary}, *lines)


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
        raise OutputFailed(f"the report {name} cannot be written: {error.strerror}") from error


Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without it, only show what would be done.")]


def is_dry(*, yes: bool, dry_run: bool = False) -> bool:
    """Return whether the command only shows its plan; raise ConfigError for both options at once."""
    if yes and dry_run:
        raise ConfigError("--yes and --dry-run exclude each other")
    return not yes


def way_to_apply(done: str) -> str:
    """Return the last line of a plan, which names what was not ``done`` and the way to do it."""
    return f"nothing was {done}: --yes does it"
