"""An assigned partition of a consumer, with its position and phase. A phase is one object with the phase's data.

In the table, "loss, X" means that the loss policy decides: with ``fail`` the partition becomes `Failed`, with
``report`` it continues with X. "look up" means `Looking` with a new look-up. Answers to earlier look-ups are dropped. A
`Live` partition is *unchecked* until the client begins to check its log for truncation, then *silent* until its first
message.

| from | event | next |
|---|---|---|
| - | assigned, paused or not | look up |
| any | revoked, lost, closed | removed, with its waiting records and held messages |
| any but `Live` | pause | `Parked`; if the start is unknown, `Looking` until the start is known |
| `Live` | pause, resume | `Live`, and the client pauses or resumes the partition |
| `Parked` | resume | look up |
| `Failed`, `Idle` | resume | unchanged |
| any | seek | look up, or `Parked` if paused and the offset is known; clear error, retries, epoch and end |
| `Live` | seek to an offset that only the broker has | `Live`, silent: the client seeks |
| `Looking` | error | `Backoff`; a transient error is raised after ``timeout.ms``, any other at once |
| `Looking` | `Unset` | `Idle`, and an event |
| `Looking` | `Waits`, or no start yet | `Waiting`, and the end is reported once |
| `Looking` | `Unreadable` | loss, `Waiting` |
| `Looking` | `Recreated` | loss, look up the new topic's beginning |
| `Looking` | `Overwritten`, `Lost`, `EndsEarlier` | loss, look up where to continue (for `EndsEarlier` on the broker) |
| `Looking` | `OnBroker` | `Live`: unchecked if the epoch before the position is known, else silent |
| `Looking` | `InBucket` | `Bucket` |
| `Looking` | the client or a user's callback raises | `Backoff` |
| `Bucket` | the read ended | loss for each lost range, look up the offset after it |
| `Bucket` | damaged records for the first time at the position | look up |
| `Bucket` | damaged records again, or a missing key, and the broker has the position | look up, on the broker first |
| `Bucket` | the same, and the broker begins before the segment's end | `Bucket` up to the broker's beginning |
| `Bucket` | the same, and the broker does not help | loss, look up the next readable offset |
| `Bucket` | another error | `Backoff`; lists the topic again if a segment is gone |
| `Live` | a message, if unchecked, or if silent and from an earlier assignment | drop it: the client returns it again |
| `Live` | another message | return it |
| `Live` | the client's log was truncated | loss, look up where the later epoch begins; `Parked` if paused |
| `Live` | the client's offset is out of range | look up, then `Backoff`; `Parked` if paused |
| `Live` | periodic check: `Recreated` | loss, look up the new topic's beginning |
| `Live` | periodic check: stalled, truncated, or better read from the bucket | look up |
| `Backoff`, `Waiting` | the time has come | look up |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, TypeAlias

from tieredstore.consumer.settings import Reset
from tieredstore.live.follower import Link
from tieredstore.model import TopicPartition, Uuid
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition as KafkaPartition

    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.client import Received
    from tieredstore.consumer.lookups import Look
    from tieredstore.consumer.placement import LiveSpan
    from tieredstore.consumer.streams import StoredStream


@dataclass(frozen=True, slots=True)
class Tail:
    """A start this many offsets before the end of the log."""

    count: int


Start: TypeAlias = int | Literal["committed"] | Reset | Tail
"""Where to start: an offset; the group's commit, or ``auto.offset.reset`` if there is no commit; always
``auto.offset.reset``; or a number of offsets before the end."""


@dataclass(frozen=True, slots=True)
class Looking:
    """A look-up of the partition is running."""

    word: ClassVar[str] = "looking"
    look: Look


@dataclass(frozen=True, slots=True)
class Backoff:
    """After an error, the partition waits until the time ``until`` for its next look-up. If ``reload`` is True, that
    look-up lists the whole topic again.
    """

    word: ClassVar[str] = "looking"
    until: float
    reload: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next record is not available yet. The next look-up is at ``until``."""

    word: ClassVar[str] = "waiting"
    until: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """The partition is read from the bucket."""

    word: ClassVar[str] = "bucket"
    stream: StoredStream


class Stall(NamedTuple):
    """The position at which a live partition makes no progress, and the time of the first check at this position."""

    position: int
    since: float


@dataclass(eq=False, slots=True)
class Live:
    """The client fetches the partition from the broker, from ``assigned_at`` on."""

    word: ClassVar[str] = "live"
    assigned_at: int
    link: Link = Link.SILENT
    held: deque[Received] = field(default_factory=deque["Received"])
    """Messages taken from the client and not returned yet."""
    hole_at: int = -1
    """The offset at which the client has reported a compacted batch as too large."""
    review: Look | None = None
    """The running look-up that checks if the client should continue to fetch the partition."""
    stall: Stall | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """The partition is paused: nothing is read or looked up."""

    word: ClassVar[str] = "looking"


@dataclass(frozen=True, slots=True)
class Failed:
    """Records are lost or damaged: each call raises ``error``."""

    word: ClassVar[str] = "failed"
    error: Exception


@dataclass(frozen=True, slots=True)
class Idle:
    """The partition has no start offset, and ``auto.offset.reset`` is ``error``. It stays idle until a seek."""

    word: ClassVar[str] = "idle"


Phase: TypeAlias = Looking | Backoff | Waiting | Bucket | Live | Parked | Failed | Idle

_NONE_HELD: Final = deque["Received"](maxlen=0)


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The log as the last look-up found it."""

    topic_id: Uuid | None = None
    live: LiveSpan | None = None
    lineage: Lineage | None = None


@dataclass(slots=True)
class Commit:
    """A partition's pending and last commit."""

    stored: KafkaPartition | None = None
    """The partition and offset passed to ``store_offsets``."""
    committed: int | None = None
    """The offset of the last automatic commit."""
    has_given: bool = False
    """True if a record was returned, so that there is an offset to commit."""


@dataclass(slots=True)
class Retry:
    """Failures since the last success: their number, the time when the first failed look-up or read began, and how many
    of them were refusals of the broker to send records of an offset that its log should have.
    """

    tries: int = 0
    since: float | None = None
    refusals: int = 0


@dataclass(slots=True)
class Tally:
    """Statistics of a partition: its last source, the number of changes of source, the last record's timestamp."""

    side: str | None = None
    changes: int = 0
    timestamp_ms: int = -1


@dataclass(eq=False, slots=True)
class Partition:
    """An assigned partition. ``phase`` has the data of its present phase; the other fields outlive a phase."""

    where: TopicPartition
    at: Position | Start
    """The next offset to return; while it is unknown, where to start."""
    phase: Phase = field(default_factory=Parked)
    paused: bool = False
    log: SeenLog = field(default_factory=SeenLog)
    left_at: int | None = None
    """From this offset on, the broker is preferred in any mode, because the broker's log ended or was truncated
    there, or because the bucket's records there are damaged."""
    commit: Commit = field(default_factory=Commit)
    retry: Retry = field(default_factory=Retry)
    eof_at: int = -1
    """The offset at which the end of the partition was last reported."""
    damaged_at: int | None = None
    """The position at which the last read of the bucket has met damage. Damage there again is in the bucket."""
    revived: tuple[int, int] | None = None
    """The partition's position and the broker's end when the partition last stalled and was assigned again."""
    tally: Tally = field(default_factory=Tally)

    @property
    def position(self) -> int | None:
        """The next offset; None until the start is known."""
        if isinstance(self.at, Position):
            return self.at.offset
        return self.at if isinstance(self.at, int) else None

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the record before the position; None if unknown."""
        return self.at.epoch if isinstance(self.at, Position) else None

    @property
    def held(self) -> deque[Received]:
        """Messages taken from the client and not returned yet."""
        return self.phase.held if isinstance(self.phase, Live) else _NONE_HELD

    @property
    def is_at_end(self) -> bool:
        """True if the end was reported, and no record was returned since."""
        return self.position is not None and not self.held and self.eof_at >= self.position

    def __str__(self) -> str:
        return f"{self.where[0]}-{self.where[1]}"
