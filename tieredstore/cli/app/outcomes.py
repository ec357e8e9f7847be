"""The report of a command that changes a bucket, and the rule for commands that delete or rewrite.

Commands that delete or rewrite show their plan. Only ``--yes`` applies it. In the output for scripts, each item is a
JSON object with the same layout in all tools. The last line is a summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from tieredstore.api.outcomes import OnOutcome, Outcome, Plan, Totals
from tieredstore.cli.terminal.output import JsonValue, complain, human_count, print_json_line, print_lines, quantity
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import Row, attributes_of
from tieredstore.errors import PartlyDoneError, StoreError, TieredStoreError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

OUTCOME: Final[Row[Outcome]] = attributes_of(Outcome)
"""The JSON fields of an :class:`Outcome`. Some commands add fields of their own."""


@dataclass(frozen=True, slots=True)
class Words:
    """A tool's words in output for people. ``noun`` names its items, and ``done`` the main result. ``left`` and
    ``also`` have words for other results, by outcome code.

    ``show`` returns a line for an item, or None if the sums are enough. The user asked to change the items with an
    outcome code in ``stopping``. If such an item is kept, the command exits with 6.
    """

    noun: str
    done: str
    left: Mapping[str, str]
    show: Callable[[Any, str], str | None]
    doing: str
    stopping: frozenset[str] = frozenset()
    also: Mapping[str, str] = field(default_factory=dict[str, str])
    """Words for the outcome codes of other changes, which do not count as ``done``."""
    exit_codes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The exit code of the command by outcome code. ``show`` itself reports the items with these outcome codes."""
    has_sizes: bool = True
    none: str | None = None
    """The sentence to print if there were no items."""
    again: str = "run it again to continue"
    """The advice to print if a signal ends the run."""
    only_adds: bool = False
    """True if the command acts at once unless ``dry_run`` is given."""
    row: Row[Any] = OUTCOME
    """An item's fields for scripts. A tool may append further fields to these common fields."""


@dataclass(slots=True)
class Teller:
    """Reports items one by one, and sums them up."""

    words: Words
    as_json: bool
    dry_run: bool
    counts: Counter[str] = field(default_factory=Counter[str])
    changed: int = 0
    size: int = 0
    unsized: int = 0
    more: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Fields of the summary for scripts, in addition to the sums that every tool has."""

    def note(self, outcome: Outcome) -> None:
        """Count an item."""
        self.counts[outcome.code] += 1
        if outcome.status in ("planned", "done") and outcome.code not in self.words.also:
            self.changed += 1
            self.size += outcome.stored_size or 0
            self.unsized += outcome.stored_size is None

    def verb_of(self, outcome: Outcome) -> str:
        """Return the item's result, such as ``deleted``, ``would be deleted`` or ``not tried``."""
        return f"would be {outcome.code}" if outcome.status == "planned" else outcome.code.replace("_", " ")

    def tell(self, outcome: Outcome) -> None:
        """Report an item."""
        self.note(outcome)
        if self.as_json:
            print_json_line(self.words.row.json(outcome))
            return
        line = self.words.show(outcome, self.verb_of(outcome))
        if line is not None:
            print_lines([line])

    def sentence(self) -> str:
        """Return a sentence with the number of changed items and their bytes."""
        done = f"{quantity(self.changed, self.words.noun)} {'would be ' if self.dry_run else ''}{self.words.done}"
        unknown = f", and {human_count(self.unsized)} of unknown size" if self.unsized else ""
        return f"{done} ({human_bytes(self.size)}{unknown})" if self.changed and self.words.has_sizes else done

    def count_up(self, words: Mapping[str, str]) -> str:
        """Return the number of items with each outcome code in ``words``, as text. The text is empty if there are no
        such items."""
        return "; ".join(f"{self.counts[code]} {text}" for code, text in words.items() if self.counts[code])

    def describe_stop(self) -> str:
        """Return the sentence to print if a signal ends the run."""
        left = self.count_up(self.words.left)
        return f"stopped; {self.sentence()}; {f'left alone: {left}; ' if left else ''}{self.words.again}"

    def sum_up(self, totals: Totals, stays: list[JsonValue]) -> None:
        """Print the summary. The summary for people has the sums, the items that were kept, and how to apply a plan."""
        if self.as_json:
            sums = {name: value for name, value in asdict(totals).items() if name != "failures"}
            codes: dict[str, JsonValue] = dict(sorted(self.counts.items()))
            shared: dict[str, JsonValue] = {"codes": codes, "dry_run": self.dry_run, "stays": stays}
            print_json_line({"summary": {**sums, **self.more, **shared}})
            return
        print_lines([self.sentence() if self.counts or self.words.none is None else self.words.none])
        for heading, words in (("also", self.words.also), ("left alone", self.words.left)):
            if said := self.count_up(words):
                print_lines([f"{heading}: {said}"])
        if self.dry_run and totals.planned and not self.words.only_adds:
            print_lines([f"nothing was {self.words.done}: --yes does it"])


def carry_out(
    plan: Plan,
    words: Words,
    *,
    yes: bool,
    as_json: bool,
    store: ObjectStore | None = None,
    more: Mapping[str, JsonValue] | None = None,
) -> None:
    """Show a plan or apply it, and print a summary. ``more`` adds fields to the summary for scripts. Report if
    ``store`` retains deleted data.
    """
    tell_all(plan.apply if yes else plan.show, Teller(words, as_json, dry_run=not yes, more=dict(more or {})), store)


def tell_all(act: Callable[[OnOutcome], Totals], teller: Teller, store: ObjectStore | None = None) -> None:
    """Report each item while ``act`` processes it, count the items, and print a summary. See :func:`finish`."""
    doing = "checking" if teller.dry_run else teller.words.doing
    with tell_if_stopped(teller.describe_stop), counting(doing, teller.words.noun) as advance:

        def tell(outcome: Outcome) -> None:
            teller.tell(outcome)
            advance()

        totals, failure = totals_of(lambda: act(tell))
    finish(teller, totals, failure, say_what_stays(store) if store is not None and teller.changed else [])


def totals_of(act: Callable[[], Totals]) -> tuple[Totals, PartlyDoneError | None]:
    """Call ``act``. Return its totals and, if items failed, the error."""
    try:
        return act(), None
    except PartlyDoneError as error:
        return cast("Totals", error.totals), error


def finish(teller: Teller, totals: Totals, failure: PartlyDoneError | None, stays: list[JsonValue]) -> None:
    """Print the summary, and end with the code of the first failure.

    If the first failure has no exit code, raise PartlyDoneError. If nothing failed but items were kept although the
    user named them, end with exit code 6.
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
    """Report on stderr which storage a deletion does not free. Return the same sentences for scripts."""
    from tieredstore.backends.base import admin_of

    sentences = list(admin_of(store).kept_after_delete())
    for sentence in sentences:
        complain(sentence)
    return [*sentences]
