"""The steps of tools that change a bucket, and the outcomes of steps.

A tool is a frozen dataclass with the store and the options of a run. Its ``run`` is a generator. For each item of a
listing, ``run`` plans what to do. Unless the run is a dry run, it then carries out the plan. Finally it yields a step.
The tool's docstring and the texts of its command list the possible outcomes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError

ItemT_co = TypeVar("ItemT_co", covariant=True)


class Outcome(enum.StrEnum):
    """The result for one item. In a dry run, this is the result that a real run would have."""

    # Outcomes of items that were changed.
    ADDED = "added"
    ADOPTED = "adopted"
    """The batch had no notification. A new notification lets readers find the batch."""
    COPIED = "copied"
    """The item is in the target, and was verified."""
    DELETED = "deleted"
    FREED = "freed"
    """A batch past retention. Its notification is deleted, and its object will be deleted later."""
    REPAIRED = "repaired"
    """The damaged objects of the segment were replaced by the objects of a good copy."""
    ROTATED = "rotated"
    """The active key pair now wraps the segment's data key."""

    # Outcomes of items that needed no change.
    ACTIVE = "active"
    """In a rotation, the active pair already wraps the data key. In an upload, the broker may still append to the
    segment.
    """
    GONE = "gone"
    """Another process has deleted the item or is working on it."""
    PLAIN = "plain"
    """The segment is not encrypted."""
    THERE = "there"
    """The item existed already, with equal content."""

    # Outcomes of items that were kept.
    CHANGED = "changed"
    """Another process changed the item's manifest during each attempt."""
    COMMITTED = "committed"
    """The file is committed, but not published yet. The next run publishes the file."""
    DAMAGED = "damaged"
    """The item is unreadable, or its content is that of another item."""
    FAILED = "failed"
    """The copy failed, for the reason in the step's error. Copies of other items may succeed."""
    FORGOTTEN = "forgotten"
    """An object older than the queue's records. It is unknown if readers were ever notified of this object."""
    HELD = "held"
    """The item is under a legal hold."""
    LEFT = "left"
    """Only the store itself can remove the item."""
    LEFTOVER = "leftover"
    """The segment has no manifest, like a running copy. The garbage collection deletes it once it is old."""
    LISTED = "listed"
    """The brokers still list the item."""
    NEWER = "newer"
    """The item was written after the plan was made."""
    NO_RULES = "no_rules"
    """The store has no lifecycle rules, or does not list them."""
    NOT_TRIED = "not_tried"
    """An earlier item failed for a reason that also applies to this item."""
    REFERENCED = "referenced"
    """The segment has a manifest by now."""
    REFUSED = "refused"
    """The store refuses to read, replace or delete the item."""
    UNKNOWN = "unknown"
    """The segment's last offset is unknown, or no record of the brokers ever named the segment."""
    UNKNOWN_KEY = "unknown_key"
    """The key pair that the manifest names is not on the key ring."""
    WAITING = "waiting"
    """An object whose notification is deleted, but which readers may still fetch."""
    WRONG_KEY = "wrong_key"
    """The key pair that the manifest names does not open the data key."""
    YOUNG = "young"
    """The item is too new. Its writer may still be running, or brokers may not list it yet."""

    @property
    def is_change(self) -> bool:
        """True if this outcome means that the item was changed."""
        return self in _CHANGES


_CHANGES = frozenset({
    Outcome.ADDED, Outcome.ADOPTED, Outcome.COPIED, Outcome.DELETED, Outcome.FREED, Outcome.REPAIRED, Outcome.ROTATED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step(Generic[ItemT_co]):
    """An item that a command has processed, and the outcome. ``reason`` says why the item was kept, if the outcome does
    not say so.
    """

    item: ItemT_co
    outcome: Outcome
    reason: str | None = None


def require_conditional_writes(store: ObjectStore, tool: str) -> None:
    """Raise ConfigError that names store and tool, if the store's conditional writes are not atomic."""
    if not store.conditional_writes:
        raise ConfigError(
            f"{tool} needs a store that replaces an object only if it is unchanged, but {store.identity} "
            "does not guarantee that; use S3, GCS, Azure Blob Storage or a folder"
        )
