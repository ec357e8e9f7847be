"""What the tools that change a bucket have in common: the outcomes of their steps.

A tool is a frozen dataclass: its fields are the store and the options of a run. ``run`` is a generator: from a listing
it plans what becomes of each item, does it unless it is a dry run, and gives a step for each item as it is done. Its
docstring, and the words of its command, say which outcomes it gives.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError

ItemT_co = TypeVar("ItemT_co", covariant=True)


class Outcome(enum.StrEnum):
    """What became of one item; in a dry run, what would become of it."""

    # Changed.
    ADDED = "added"
    ADOPTED = "adopted"
    """An orphan of which readers are told now."""
    COPIED = "copied"
    """It stands in the target, verified."""
    DELETED = "deleted"
    FREED = "freed"
    """A batch that retention does not keep: its notification is gone, its object is deleted later."""
    REMOVED = "removed"
    ROTATED = "rotated"
    """Its data key is wrapped by the active pair now."""

    # Nothing to do.
    ACTIVE = "active"
    """Its data key was wrapped by the active pair already, or the broker may still append to it."""
    GONE = "gone"
    """Somebody else deleted it meanwhile, or is about to, or its writer is at work."""
    PLAIN = "plain"
    """It is not encrypted."""
    THERE = "there"
    """It was there, equal."""

    # Left alone.
    CHANGED = "changed"
    """Its manifest was changed by somebody else each time it was looked at."""
    COMMITTED = "committed"
    """It is committed and not yet published: whoever starts next does that."""
    DAMAGED = "damaged"
    """It cannot be read, or is that of another item."""
    FAILED = "failed"
    """It cannot be copied, for the reason of the step's error; others can."""
    FORGOTTEN = "forgotten"
    """An object older than what the queue remembers: nobody can tell whether it was ever notified."""
    HELD = "held"
    """It is under a legal hold."""
    LEFT = "left"
    """Nobody but the store can take it away."""
    LEFTOVER = "leftover"
    """It has no manifest, as a copy under way: the garbage collection takes it when it is old."""
    LISTED = "listed"
    """The brokers still list it."""
    NEWER = "newer"
    """It was written after the plan was made."""
    NO_RULES = "no_rules"
    """The store has no rules of its own, or does not tell them."""
    NOT_TRIED = "not_tried"
    """One before it failed as this one would have."""
    REFERENCED = "referenced"
    """It has a manifest by now."""
    REFUSED = "refused"
    """The store refuses to delete it."""
    UNKNOWN = "unknown"
    """Where it ends is not known, or the brokers' records never named it."""
    UNKNOWN_KEY = "unknown_key"
    """Its pair is not on the ring."""
    WAITING = "waiting"
    """An object whose notification is freed, and which readers may still fetch."""
    WRONG_KEY = "wrong_key"
    """The pair of its id does not open its data key."""
    YOUNG = "young"
    """It may be of a writer at work, or of brokers that do not list it yet."""

    @property
    def is_change(self) -> bool:
        """Whether the item was changed."""
        return self in _CHANGES


_CHANGES = frozenset({
    Outcome.ADDED, Outcome.ADOPTED, Outcome.COPIED, Outcome.DELETED, Outcome.FREED, Outcome.REMOVED, Outcome.ROTATED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step(Generic[ItemT_co]):
    """One item of a tool, and what became of it; ``reason`` says why it was left alone, where that is to be said."""

    item: ItemT_co
    outcome: Outcome
    reason: str | None = None


def require_conditional_writes(store: ObjectStore, tool: str) -> None:
    """ConfigError, naming store and tool, unless the store's conditional writes are atomic."""
    if not store.conditional_writes:
        raise ConfigError(
            f"{tool} needs a store that replaces an object only if nobody else has changed it, and {store.identity} "
            "cannot promise that; use one that can (S3, GCS, Azure Blob Storage or a folder)"
        )
