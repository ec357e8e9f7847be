"""What is asked of a partition's logs, and what is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar, cast

from tieredstore.consumer.placement import Placement, Waits
from tieredstore.consumer.settings import Reset
from tieredstore.model import TopicPartition, Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.placement import LiveExtent

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Tail:
    """So many offsets before the end of the log."""

    count: int


Start: TypeAlias = int | Literal["committed"] | Reset | Tail
"""An offset; or what the group has committed, else the reset; or where it is counted from the end."""

_WAITS: Final = Waits()


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be found out of one partition. ``generation`` comes back with the answer.

    ``last_epoch`` is that of the record before ``start``, -1 if it is not known.
    """

    where: TopicPartition
    generation: int
    start: Start
    last_epoch: int = -1
    topic_id: Uuid | None = None
    reload: bool = False
    """The bucket's log is not what it was when it was listed."""
    is_review: bool = False
    """The partition goes on meanwhile; only what does not fit it any more is of interest."""
    broker_from: int | None = None
    """From there on the broker is preferred, whatever the mode: the bucket's log is one that the broker has left."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found out. ``position`` is None where nothing is there yet to start at.

    ``error`` stands in place of all of it. ``was_reset`` says that the offset was outside of both logs.
    """

    where: TopicPartition
    generation: int
    placement: Placement = _WAITS
    position: int | None = None
    live: LiveExtent | None = None
    lineage: Lineage | None = None
    readable_end: int | None = None
    """Behind the last record of the broker that may be read, where that was asked."""
    topic_id: Uuid | None = None
    error: Exception | None = None
    was_reset: int | None = None
    truncated_to: int | None = None
    """Where the bucket's log left the one that was read: the record before the position is of another leader epoch."""
    recreated: bool = False
    is_review: bool = False
    is_unset: bool = False
    """There is no offset to start at, and the reset is ``error``."""


@dataclass(slots=True)
class KnownLook:
    """A look on its way from the broker's thread to the bucket's."""

    look: Look
    start: int | Reset | Tail
    live: LiveExtent | None = None
    latest: int | None = None
    """Where the broker has ``latest`` begin: the last stable offset, for ``read_committed``."""
    answered_at: float = 0.0
    """When the broker had said so: what it had deleted by then may be missing in an earlier listing."""
    live_epoch: int | None = None
    """That of the broker's leader."""
    topic_id: Uuid | None = None
    was_reset: int | None = None
    is_reloaded: bool = False


def blank_answer(one: KnownLook) -> Answer:
    """An answer that tells what was found out on the way, and has the partition wait."""
    look = one.look
    return Answer(
        look.where, look.generation, live=one.live, topic_id=one.topic_id, was_reset=one.was_reset,
        is_review=look.is_review, readable_end=one.latest,
    )  # fmt: skip


def cut_below(one: KnownLook, lineage: Lineage | None) -> int | None:
    """The offset from which on the bucket's log is another one than was read, if it is."""
    last = one.start - 1 if isinstance(one.start, int) else -1
    if lineage is None or one.look.last_epoch < 0 or not lineage.earliest_offset <= last < lineage.end_offset:
        return None
    ruling = [epoch for epoch, start in lineage.epochs if start <= last]
    if not ruling or ruling[-1] in (-1, one.look.last_epoch):
        return None
    later = [start for epoch, start in lineage.epochs if epoch > one.look.last_epoch]
    return min(later, default=last)


class Asked(Generic[Result]):
    """What somebody waits for that is found out on another thread; it is always answered, at the end by an error."""

    def __init__(self) -> None:
        self._is_answered = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None

    def answer(self, work: Callable[[], Result]) -> None:
        """With what ``work`` gives, or with its error."""
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001  whoever waits has to hear of any
            self._error = error
        self._is_answered.set()

    def wait(self, timeout_s: float | None) -> Result:
        """The answer, or its error; TimeoutError if there is none in time."""
        if not self._is_answered.wait(timeout_s):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast("Result", self._result)
