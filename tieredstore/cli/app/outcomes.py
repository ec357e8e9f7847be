"""What a command that changes a bucket tells of its items, and the one rule of those that delete or rewrite.

These show their plan and end with 0; only ``--yes`` applies it. For scripts each item is an object of JSON, the same of
all tools, and the last line is a summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from tieredstore.api.outcomes import OnOutcome, Outcome, Plan, Totals
from tieredstore.cli.terminal.output import JsonValue, complain, counted, human_count, print_json_line, print_lines
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import Row, attributes_of
from tieredstore.errors import PartlyDoneError, StoreError, TieredStoreError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

OUTCOME: Final[Row[Outcome]] = attributes_of(Outcome)
"""One item of any tool, for scripts."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a person reads of a tool: of how many ``noun``s what was ``done``, and what else became of them by code.

    ``show`` makes a line of an item, or None where the sums are enough. Items that are kept for a code of ``stopping``
    make the command end with 6: what it was told to do is not done.
    """

    noun: str
    done: str
    left: Mapping[str, str]
    show: Callable[[Any, str], str | None]
    doing: str
    stopping: frozenset[str] = frozenset()
    also: Mapping[str, str] = field(default_factory=dict[str, str])
    """Codes of changes of another kind than ``done``, in words; they are counted apart."""
    exit_codes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Exit codes of their own for items of these codes, each of which ``show`` has told of."""
    has_sizes: bool = True
    none: str | None = None
    """The sentence where there was no item at all."""
    again: str = "run again to go on"
    """How to go on where a signal ended it."""
    only_adds: bool = False
    """It acts at once, but for a dry run."""
    row: Row[Any] = OUTCOME
    """The item for scripts: a tool whose outcomes have more fields adds them behind those of all tools."""


@dataclass(slots=True)
class Teller:
    """Tells of one item after the other, and sums them up."""

    words: Words
    as_json: bool
    is_plan: bool
    counts: Counter[str] = field(default_factory=Counter[str])
    changed: int = 0
    size: int = 0
    unsized: int = 0
    more: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """What a summary for scripts has beside the sums of every tool."""

    def note(self, outcome: Outcome) -> None:
        """Count one item more."""
        self.counts[outcome.code] += 1
        if outcome.status in ("planned", "done") and outcome.code not in self.words.also:
            self.changed += 1
            self.size += outcome.stored_size or 0
            self.unsized += outcome.stored_size is None

    def verb_of(self, outcome: Outcome) -> str:
        """``deleted``, ``would be deleted``, ``not tried``."""
        return f"would be {outcome.code}" if outcome.status == "planned" else outcome.code.replace("_", " ")

    def tell(self, outcome: Outcome) -> None:
        """Of one item more."""
        self.note(outcome)
        if self.as_json:
            print_json_line(self.words.row.json(outcome))
            return
        line = self.words.show(outcome, self.verb_of(outcome))
        if line is not None:
            print_lines([line])

    def sentence(self) -> str:
        """How much is done, and its bytes."""
        done = f"{counted(self.changed, self.words.noun)} {'would be ' if self.is_plan else ''}{self.words.done}"
        unknown = f", and {human_count(self.unsized)} whose size the store does not tell" if self.unsized else ""
        return f"{done} ({human_bytes(self.size)}{unknown})" if self.changed and self.words.has_sizes else done

    def count_up(self, words: Mapping[str, str]) -> str:
        """How many items came to each of these codes, in words; nothing if there are none."""
        return "; ".join(f"{self.counts[code]} {text}" for code, text in words.items() if self.counts[code])

    def stopped(self) -> str:
        """The sentence where a signal ends it."""
        left = self.count_up(self.words.left)
        return f"stopped; {self.sentence()}; {f'left alone: {left}; ' if left else ''}{self.words.again}"

    def sum_up(self, totals: Totals, stays: list[JsonValue]) -> None:
        """The summary for scripts; for a person the sums, what was left alone, and how a plan is applied."""
        if self.as_json:
            sums = {name: value for name, value in asdict(totals).items() if name != "failures"}
            codes: dict[str, JsonValue] = dict(sorted(self.counts.items()))
            shared: dict[str, JsonValue] = {"codes": codes, "dry_run": self.is_plan, "stays": stays}
            print_json_line({"summary": {**sums, **self.more, **shared}})
            return
        print_lines([self.sentence() if self.counts or self.words.none is None else self.words.none])
        for heading, words in (("also", self.words.also), ("left alone", self.words.left)):
            if said := self.count_up(words):
                print_lines([f"{heading}: {said}"])
        if self.is_plan and totals.planned and not self.words.only_adds:
            print_lines([f"nothing was {self.words.done}: --yes does it"])


def carry_out(plan: Plan, words: Words, *, yes: bool, as_json: bool, store: ObjectStore | None = None) -> None:
    """Show a plan, or apply it, and sum it up. ``store`` is what may keep what is deleted, which is told of."""
    tell_all(plan.apply if yes else plan.show, Teller(words, as_json, is_plan=not yes), store)


def tell_all(act: Callable[[OnOutcome], Totals], teller: Teller, store: ObjectStore | None = None) -> None:
    """Tell of each item that ``act`` gives, count them while it works, and sum them up; see :func:`finish`."""
    doing = "checking" if teller.is_plan else teller.words.doing
    with tell_if_stopped(teller.stopped), counting(doing, f"{teller.words.noun}s") as advance:

        def tell(outcome: Outcome) -> None:
            teller.tell(outcome)
            advance()

        totals, failure = totals_of(lambda: act(tell))
    finish(teller, totals, failure, say_what_stays(store) if store is not None and teller.changed else [])


def totals_of(act: Callable[[], Totals]) -> tuple[Totals, PartlyDoneError | None]:
    """The totals, and the error that they came with if items failed."""
    try:
        return act(), None
    except PartlyDoneError as error:
        return cast("Totals", error.totals), error


def finish(teller: Teller, totals: Totals, failure: PartlyDoneError | None, stays: list[JsonValue]) -> None:
    """Sum up, and end with the code of the first failure.

    PartlyDoneError for failures without an error; exit code 6 for items that stayed against what was asked for.
    """
    teller.sum_up(totals, stays)
    code = next((code for name, code in teller.words.exit_codes.items() if teller.counts[name]), None)
    if code is not None:
        raise typer.Exit(code)
    if failure is not None:
        first = totals.failures[0].error
        if isinstance(first, TieredStoreError):
            raise typer.Exit(first.exit_code)
        raise failure
    if any(teller.counts[code] for code in teller.words.stopping):
        raise typer.Exit(StoreError.exit_code)


def say_what_stays(store: ObjectStore) -> list[JsonValue]:
    """What a deletion does not free, on stderr; the same for scripts."""
    from tieredstore.backends.base import admin_of

    sentences = list(admin_of(store).kept_after_delete())
    for sentence in sentences:
        complain(sentence)
    return [*sentences]
