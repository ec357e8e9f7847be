"""The common part of the tools that change a bucket: the outcomes of their steps.

A tool is a frozen dataclass: its fields are the store and the options of a run. ``run`` is a generator: it plans each
item of a listing, acts unless it is a dry run, and yields a step for each item when it is done. Its docstring, and the
words of its command, list its outcomes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError

ItemT_co = TypeVar("ItemT_co", covariant=True)


class Outcome(enum.StrEnum):
    """The outcome of one item; in a dry run, the planned one."""

    # Changed.
    ADDED = "added"
    ADOPTED = "adopted"
    """An orphan that has been notified to readers."""
    COPIED = "copied"
    """It is in the target, verified."""
    DELETED = "deleted"
    FREED = "freed"
    """A batch beyond retention: its notification is deleted, its object follows later."""
    REMOVED = "removed"
    ROTATED = "rotated"
    """The active pair wraps its data key now."""

    # Nothing to do.
    ACTIVE = "active"
    """The active pair wrapped its data key already, or the broker may still append to it."""
    GONE = "gone"
    """Another process has deleted it, or will, or its writer is alive."""
    PLAIN = "plain"
    """It is not encrypted."""
    THERE = "there"
    """It existed already, with equal bytes."""

    # Kept.
    CHANGED = "changed"
    """Another process changed its manifest during each attempt."""
    COMMITTED = "committed"
    """It is committed and not yet published: the next run publishes it."""
    DAMAGED = "damaged"
    """It is unreadable, or belongs to another item."""
    FAILED = "failed"
    """Its copy failed, for the reason in the step's error; others may succeed."""
    FORGOTTEN = "forgotten"
    """An object older than the queue's memory: it is unknown if it was ever notified."""
    HELD = "held"
    """It is under a legal hold."""
    LEFT = "left"
    """Only the store can remove it."""
    LEFTOVER = "leftover"
    """It has no manifest, like a running copy: the garbage collection takes it when it is old."""
    LISTED = "listed"
    """The brokers still list it."""
    NEWER = "newer"
    """It was written after the plan was made."""
    NO_RULES = "no_rules"
    """The store has no rules, or does not list them."""
    NOT_TRIED = "not_tried"
    """An earlier item failed as this one would have."""
    REFERENCED = "referenced"
    """It has a manifest by now."""
    REFUSED = "refused"
    """The store refuses to delete it."""
    UNKNOWN = "unknown"
    """Its end is unknown, or the brokers' records never named it."""
    UNKNOWN_KEY = "unknown_key"
    """Its pair is not on the ring."""
    WAITING = "waiting"
    """An object whose notification is deleted, and which readers may still fetch."""
    WRONG_KEY = "wrong_key"
    """The pair of its id does not open its data key."""
    YOUNG = "young"
    """Its writer may be alive, or brokers may not list it yet."""

    @property
    def is_change(self) -> bool:
        """True if the item was changed."""
        return self in _CHANGES


_CHANGES = frozenset({
    Outcome.ADDED, Outcome.ADOPTED, Outcome.COPIED, Outcome.DELETED, Outcome.FREED, Outcome.REMOVED, Outcome.ROTATED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step(Generic[ItemT_co]):
    """One item of a tool, and its outcome; ``reason`` says why it was kept, if that needs saying."""

    item: ItemT_co
    outcome: Outcome
    reason: str | None = None


def require_conditional_writes(store: ObjectStore, tool: str) -> None:
    """Raise ConfigError, naming store and tool, unless the store's conditional writes are atomic."""
    if not store.conditional_writes:
        raise ConfigError(
            f"{tool} needs a store that replaces an object only if it is unchanged, and {store.identity} "
            "cannot promise that; use one that can (S3, GCS, Azure Blob Storage or a folder)"
        )
