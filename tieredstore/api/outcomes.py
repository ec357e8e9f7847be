"""Plans of tools such as mirror and remove, and the outcome for each segment or object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.errors import PartlyDoneError
from tieredstore.model import TopicIdPartition, Uuid, human_bytes
from tieredstore.ops import steps
from tieredstore.query.arguments import check_callback
from tieredstore.query.positions import duration_text

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket as OpenBucket
    from tieredstore.ops.copies.copying import CopyStep
    from tieredstore.ops.garbage.collection import Garbage
    from tieredstore.ops.listing import ListedSegment

Status: TypeAlias = Literal["planned", "done", "kept", "failed"]

_MOST_FAILURES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The actual or planned outcome for one segment or object that a tool processes. A field is None if it does not
    apply or is unknown.

    ``code`` gives the cause of ``status`` as one word, and ``reason`` as a sentence if necessary. Offsets are
    inclusive. ``size`` is the bytes of the log, ``stored_size`` the bytes of its objects in the store.

    Example::

        for outcome in bucket.gc(min_age="7d"):
            print(outcome.name, outcome.status, outcome.reason)
    """

    action: str
    status: Status
    code: str
    topic: str | None = None
    topic_id: Uuid | None = None
    partition: int | None = None
    base_offset: int | None = None
    last_offset: int | None = None
    segment_id: Uuid | None = None
    new_segment_id: Uuid | None = None
    name: str | None = None
    kind: str | None = None
    size: int | None = None
    stored_size: int | None = None
    key_id: str | None = None
    reason: str | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        scope = (
            None if self.topic is None else self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        )
        last = "" if self.last_offset is None else self.last_offset
        offsets = None if self.base_offset is None else f"offsets {self.base_offset}…{last}"
        size = None if self.stored_size is None else human_bytes(self.stored_size)
        known = (f"{self.status} ({self.code})", scope, offsets, self.name, size, self.reason, self.error)
        return ", ".join(str(one) for one in known if one is not None)

    def of(self, where: TopicIdPartition) -> Outcome:
        """Return this outcome with the partition's topic, topic id and number."""
        return replace(self, topic=where.topic, topic_id=where.topic_id, partition=where.partition)


OnOutcome: TypeAlias = Callable[[Outcome], object] | None
"""A function that is called with each finished item."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of items by outcome.

    ``stored_size`` counts only items that are done (or planned). ``failures`` has the first failed outcomes.
    """

    planned: int = 0
    done: int = 0
    kept: int = 0
    failed: int = 0
    stored_size: int = 0
    failures: tuple[Outcome, ...] = ()


def run(outcomes: Iterable[Outcome], on_outcome: OnOutcome = None) -> Totals:
    """Process all items, even if some fail; then raise PartlyDoneError if any failed."""
    check_callback("on_outcome", on_outcome)
    counts: dict[Status, int] = {"planned": 0, "done": 0, "kept": 0, "failed": 0}
    stored_size = 0
    failures: list[Outcome] = []
    for outcome in outcomes:
        counts[outcome.status] += 1
        if outcome.status in ("planned", "done"):
            stored_size += outcome.stored_size or 0
        if outcome.status == "failed" and len(failures) < _MOST_FAILURES:
            failures.append(outcome)
        if on_outcome is not None:
            on_outcome(outcome)
    totals = Totals(**counts, stored_size=stored_size, failures=tuple(failures))
    if failures:
        first = failures[0].error or failures[0].reason or failures[0].code
        of_all = totals.planned + totals.done + totals.kept + totals.failed
        raise PartlyDoneError(f"{totals.failed} of {of_all} items failed; the first one: {first}", totals)
    return totals


class Plan:
    """The plan of a tool. Iterating shows its items and changes nothing; :meth:`apply` carries it out.

    Topic ids and ``bounds`` are fixed when the plan is made. Each use of the plan lists the items again, and each item
    is checked again right before it is changed.

    ``as_of`` is the store's time when the plan was made: newer items are kept. ``as_of`` is None if age does not
    matter, or if the store reports no time.

    Example::

        plan = bucket.remove("orders", stop="yesterday")
        print(plan.show())
        totals = plan.apply()
    """

    def __init__(
        self,
        action: str,
        scope: str,
        outcomes: Callable[[bool], Generator[Outcome]],
        *,
        bounds: Mapping[str, object] | None = None,
        as_of_ms: int | None = None,
    ) -> None:
        self.action = action
        self.scope = scope
        self.bounds: Mapping[str, object] = bounds or {}
        self.as_of: datetime | None = None if as_of_ms is None else datetime.fromtimestamp(as_of_ms / 1000, UTC)
        self._outcomes = outcomes

    def __iter__(self) -> Iterator[Outcome]:
        with contextlib.closing(self._outcomes(True)) as outcomes:
            yield from outcomes

    def show(self, on_outcome: OnOutcome = None) -> Totals:
        """Count the items without changing anything. ``on_outcome`` is called with each item."""
        with contextlib.closing(self._outcomes(True)) as outcomes:
            return run(outcomes, on_outcome)

    def apply(self, on_outcome: OnOutcome = None) -> Totals:
        """Carry out the plan. ``on_outcome`` is called with each finished item. Raises PartlyDoneError at the end if
        items failed.
        """
        with contextlib.closing(self._outcomes(False)) as outcomes:
            return run(outcomes, on_outcome)

    def __repr__(self) -> str:
        shown = {name: duration_text(of) if isinstance(of, timedelta) else of for name, of in self.bounds.items()}
        bounds = "".join(f", {name} {bound}" for name, bound in shown.items())
        return f"<Plan: {self.action} {self.scope}{bounds}; apply() does it>"


_FAILED: Final = frozenset({
    steps.Outcome.CHANGED, steps.Outcome.DAMAGED, steps.Outcome.FAILED, steps.Outcome.NOT_TRIED, steps.Outcome.REFUSED,
    steps.Outcome.UNKNOWN_KEY, steps.Outcome.WRONG_KEY,
})  # fmt: skip


def status_of(code: steps.Outcome, *, dry_run: bool) -> Status:
    """Return the status (done, kept, failed) that an item's code implies."""
    if code.is_change:
        return "planned" if dry_run else "done"
    return "failed" if code in _FAILED else "kept"


def of_removal(step: steps.Step[ListedSegment], *, dry_run: bool) -> Outcome:
    """Return the outcome of removing a segment."""
    objects, stored = step.item.objects, step.item.stored
    return Outcome(
        action="remove", status=status_of(step.outcome, dry_run=dry_run), code=step.outcome.value,
        base_offset=objects.start_offset, last_offset=None if stored is None else stored.last_offset,
        segment_id=objects.segment_id.id, name=objects.main_path, stored_size=objects.stored_size, reason=step.reason,
    ).of(step.item.partition)  # fmt: skip


def of_garbage(step: steps.Step[Garbage], opened: OpenBucket, *, dry_run: bool) -> Outcome:
    """Return the outcome of deleting a leftover of a broken copy or deletion."""
    item = step.item
    age = None if step.outcome is steps.Outcome.YOUNG else _age(item.modified_ms)
    kind = "forgotten" if item.forgotten is not None else "unfinished_write" if item.is_write else "no_manifest"
    return Outcome(
        action="gc", status=status_of(step.outcome, dry_run=dry_run), code=step.outcome.value, kind=kind,
        base_offset=item.first_offset, name=opened.show_key(item.name) if item.is_write else item.name,
        stored_size=item.size, reason=step.reason or age,
    ).of(item.partition)  # fmt: skip


def _age(modified_ms: int | None) -> str | None:
    moment = None if modified_ms is None else datetime.fromtimestamp(modified_ms // 1000, UTC)
    return None if moment is None else f"of {moment:%Y-%m-%d %H:%M:%S}"


def of_copy(step: CopyStep, *, dry_run: bool, action: str = "mirror") -> Outcome:
    """Return the outcome of mirroring or repairing a segment; its ``new_segment_id`` is the copy's id."""
    objects = step.item
    return Outcome(
        action=action, status=status_of(step.outcome, dry_run=dry_run), code=step.outcome.value,
        kind=None if step.way is None else step.way.value, base_offset=objects.start_offset,
        last_offset=step.last_offset, segment_id=objects.segment_id.id, new_segment_id=step.segment_id,
        name=objects.main_path,
        stored_size=step.sent or objects.stored_size, reason=step.reason, error=step.error,
    ).of(objects.segment_id.topic_id_partition)  # fmt: skip
