"""What a command that changes a bucket tells of its items, and the one rule of those that delete or rewrite.

These show their plan and end with 0; only ``--yes`` applies it. For scripts each item is an object of JSON, the same of
all tools, and the last line is a summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, cast

import typer

from tieredstore.api.outcomes import Outcome, Plan, Totals
from tieredstore.cli.terminal.output import JsonValue, complain, counted, human_count, print_json_line, print_lines
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import Row
from tieredstore.cli.terminal.rows import field as declare
from tieredstore.errors import PartlyDoneError, StoreError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

OUTCOME: Final[Row[Outcome]] = Row(
    declare("action", lambda one: one.action),
    declare("status", lambda one: one.status),
    declare("code", lambda one: one.code),
    declare("topic", lambda one: one.topic),
    declare("topic_id", lambda one: one.topic_id),
    declare("partition", lambda one: one.partition),
    declare("base_offset", lambda one: one.base_offset),
    declare("last_offset", lambda one: one.last_offset),
    declare("segment_id", lambda one: one.segment_id),
    declare("new_segment_id", lambda one: one.new_segment_id),
    declare("name", lambda one: one.name),
    declare("kind", lambda one: one.kind),
    declare("size", lambda one: one.size),
    declare("stored_size", lambda one: one.stored_size),
    declare("key_id", lambda one: one.key_id),
    declare("reason", lambda one: one.reason),
    declare("error", lambda one: None if one.error is None else str(one.error)),
)
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
    show: Callable[[Outcome, str], str | None]
    doing: str
    stopping: frozenset[str] = frozenset()
    also: Mapping[str, str] = field(default_factory=dict[str, str])
    """Codes of changes of another kind than ``done``, in words; they are counted apart."""
    none: str | None = None
    """The sentence where there was no item at all."""
    again: str = "run again to go on"
    """How to go on where a signal ended it."""


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

    def tell(self, outcome: Outcome) -> None:
        """Of one item more."""
        self.counts[outcome.code] += 1
        if outcome.status in ("planned", "done") and outcome.code not in self.words.also:
            self.changed += 1
            self.size += outcome.stored_size or 0
            self.unsized += outcome.stored_size is None
        if self.as_json:
            print_json_line(OUTCOME.json(outcome))
            return
        is_planned = outcome.status == "planned"
        line = self.words.show(outcome, f"would be {outcome.code}" if is_planned else outcome.code.replace("_", " "))
        if line is not None:
            print_lines([line])

    def sentence(self) -> str:
        """How much is done, and its bytes."""
        done = f"{counted(self.changed, self.words.noun)} {'would be ' if self.is_plan else ''}{self.words.done}"
        unknown = f", and {human_count(self.unsized)} whose size the store does not tell" if self.unsized else ""
        return f"{done} ({human_bytes(self.size)}{unknown})" if self.changed else done

    def sum_up(self, totals: Totals, stays: list[JsonValue]) -> None:
        """The summary for scripts; for a person the sums, what was left alone, and how a plan is applied."""
        if self.as_json:
            sums = {name: value for name, value in asdict(totals).items() if name != "failures"}
            codes: dict[str, JsonValue] = dict(sorted(self.counts.items()))
            print_json_line({"summary": {**sums, "codes": codes, "dry_run": self.is_plan, "stays": stays}})
            return
        print_lines([self.sentence() if self.counts or self.words.none is None else self.words.none])
        for heading, words in (("also", self.words.also), ("left alone", self.words.left)):
            if counted_codes := [f"{self.counts[code]} {text}" for code, text in words.items() if self.counts[code]]:
                print_lines([f"{heading}: {'; '.join(counted_codes)}"])
        if self.is_plan and totals.planned:
            print_lines([way_to_apply(self.words.done)])


def carry_out(plan: Plan, words: Words, *, yes: bool, as_json: bool, store: ObjectStore | None = None) -> None:
    """Show a plan, or apply it, and sum it up. ``store`` is what may keep what is deleted, which is told of.

    PartlyDoneError at the end if items failed; exit code 6 for items that stayed against what was asked for.
    """
    teller = Teller(words, as_json, is_plan=not yes)
    failure: PartlyDoneError | None = None
    with (
        tell_if_stopped(lambda: f"stopped; {teller.sentence()}; {words.again}"),
        counting(words.doing if yes else "checking", f"{words.noun}s") as advance,
    ):

        def tell(outcome: Outcome) -> None:
            teller.tell(outcome)
            advance()

        try:
            totals = plan.apply(tell) if yes else plan.show(tell)
        except PartlyDoneError as error:
            failure, totals = error, cast("Totals", error.totals)
    teller.sum_up(totals, say_what_stays(store) if store is not None and teller.changed else [])
    if failure is not None:
        raise failure
    if any(teller.counts[code] for code in words.stopping):
        raise typer.Exit(StoreError.exit_code)


def way_to_apply(done: str) -> str:
    """Return the last line of a plan, which names what was not ``done`` and the way to do it."""
    return f"nothing was {done}: --yes does it"


def say_what_stays(store: ObjectStore) -> list[JsonValue]:
    """What a deletion does not free, on stderr; the same for scripts."""
    from tieredstore.backends.base import admin_of

    sentences = list(admin_of(store).kept_after_delete())
    for sentence in sentences:
        complain(sentence)
    return [*sentences]
