"""One partition while it is assigned to a consumer: where it stands, and its phase, which is one object with its data.

"L, X" is a loss that the policy judges: with ``fail`` the partition is `Failed`, with ``report`` it goes on with X.
"look" is `Looking` with a new look. Whatever becomes of it, an answer to another look than the phase's is dropped.

| from | event | next |
|---|---|---|
| - | assigned, paused or not | look |
| any | revoked, lost, closed | gone: its stream and what is held of the client is dropped |
| any but `Live` | pause | `Parked`; `Looking` where the start is not known stays, and keeps the start alone |
| `Live` | pause, resume | `Live`, and the client pauses or resumes it |
| `Parked` | resume | look |
| `Failed`, `Idle` | resume | unchanged |
| any | seek | look, or `Parked` if it is paused at an offset; error, retries, epoch and end are forgotten |
| `Live` | seek to what is certainly on the broker alone | `Live`, silent: the client seeks |
| `Looking` | error | `Backoff`; raised once it has lasted ``timeout.ms``, at once if it does not pass |
| `Looking` | `Unset` | `Idle`, and an event |
| `Looking` | `Waits`, nothing to start at | `Waiting`, and the end is told of once |
| `Looking` | `Unreadable` | L, `Waiting` |
| `Looking` | `OtherLife` | L, look at that life's beginning |
| `Looking` | `Cut`, `Lost`, `EndsEarlier` | L, look where the log goes on (then the broker is preferred) |
| `Looking` | `OnBroker` | `Live`: unchecked if the epoch before its position is known, else silent |
| `Looking` | `InBucket` | `Bucket` |
| `Looking` | the client or a callback of the user's raises | `Backoff` |
| `Bucket` | its stream ended | L for each that was lost, look behind it |
| `Bucket` | damage, or a key is missing | L, look behind the segment |
| `Bucket` | another error | `Backoff`; lists the topic anew if a segment is gone |
| `Live` | a message: unchecked, or silent and of an earlier assignment | dropped; the client gives it again |
| `Live` | another message | heard |
| `Live` | the client's log was cut | L, look where the later epoch begins; `Parked` if paused |
| `Live` | the client is out of range | look, then `Backoff`; `Parked` if paused |
| `Live` | review: `OtherLife` | L, look at that life's beginning |
| `Live` | review: it stands still, was cut, or belongs to the bucket | look |
| `Backoff`, `Waiting` | its time has come | look |
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
    """This many offsets before the end of the log."""

    count: int


Start: TypeAlias = int | Literal["committed"] | Reset | Tail
"""An offset of the user's; or the group's commit, else the reset; or a place counted from the end."""


@dataclass(frozen=True, slots=True)
class Looking:
    """Its place is being looked up."""

    word: ClassVar[str] = "looking"
    look: Look


@dataclass(frozen=True, slots=True)
class Backoff:
    """It is looked up again at ``until``, after an error; with ``reload`` the whole topic is listed."""

    word: ClassVar[str] = "looking"
    until: float
    reload: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next record is not available yet; it is looked up again at ``until``."""

    word: ClassVar[str] = "waiting"
    until: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """It is read from the bucket."""

    word: ClassVar[str] = "bucket"
    stream: StoredStream


class Stall(NamedTuple):
    """A live partition's position at the last check for a stall, and its time."""

    position: int
    since: float


@dataclass(eq=False, slots=True)
class Live:
    """The client fetches it, from ``assigned_at`` on."""

    word: ClassVar[str] = "live"
    assigned_at: int
    link: Link = Link.SILENT
    held: deque[Received] = field(default_factory=deque["Received"])
    """Messages of the client that were taken and not returned yet."""
    hole_at: int = -1
    """The offset at which the client took compaction's leftovers for too large."""
    review: Look | None = None
    """The look that decides if it should still come from the client."""
    stall: Stall | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """Nothing runs, because it is paused."""

    word: ClassVar[str] = "looking"


@dataclass(frozen=True, slots=True)
class Failed:
    """Its records are lost or damaged, which each call raises."""

    word: ClassVar[str] = "failed"
    error: Exception


@dataclass(frozen=True, slots=True)
class Idle:
    """There is no start offset, and the reset is ``error``: it waits for a seek."""

    word: ClassVar[str] = "idle"


Phase: TypeAlias = Looking | Backoff | Waiting | Bucket | Live | Parked | Failed | Idle

_NONE_HELD: Final = deque["Received"](maxlen=0)


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The log at the last look-up."""

    topic_id: Uuid | None = None
    live: LiveSpan | None = None
    lineage: Lineage | None = None


@dataclass(slots=True)
class Commit:
    """A partition's pending and last commit."""

    stored: KafkaPartition | None = None
    """The place that ``store_offsets`` named."""
    committed: int | None = None
    """The offset of the last automatic commit."""
    has_given: bool = False
    """True if a record was returned, so that there is an offset to commit."""


@dataclass(slots=True)
class Retry:
    """The number of failures, and the time of the first one without a success since."""

    tries: int = 0
    since: float | None = None


@dataclass(slots=True)
class Tally:
    """Statistics of a partition: its last side, the number of changes, the last record's time."""

    side: str | None = None
    changes: int = 0
    timestamp_ms: int = -1


@dataclass(eq=False, slots=True)
class Partition:
    """One partition while it is assigned."""

    where: TopicPartition
    at: Position | Start
    """The next offset; a start until that is known."""
    phase: Phase = field(default_factory=Parked)
    paused: bool = False
    log: SeenLog = field(default_factory=SeenLog)
    left_at: int | None = None
    """The offset from which the broker is preferred in any mode: its log ended there before the position."""
    commit: Commit = field(default_factory=Commit)
    retry: Retry = field(default_factory=Retry)
    eof_at: int = -1
    """The offset of the last reported end."""
    revived: tuple[int, int] | None = None
    """The offset of the last reassignment after a stall, and the broker's end then."""
    tally: Tally = field(default_factory=Tally)

    @property
    def position(self) -> int | None:
        """The next offset; None until the start is known."""
        if isinstance(self.at, Position):
            return self.at.offset
        return self.at if isinstance(self.at, int) else None

    @property
    def epoch(self) -> int | None:
        """The leader epoch of the record before the position; None proves nothing."""
        return self.at.epoch if isinstance(self.at, Position) else None

    @property
    def held(self) -> deque[Received]:
        """Messages of the client that were taken and not returned yet."""
        return self.phase.held if isinstance(self.phase, Live) else _NONE_HELD

    @property
    def is_at_end(self) -> bool:
        """True if its end was reported, and nothing was returned since."""
        return self.position is not None and not self.held and self.eof_at >= self.position

    def __str__(self) -> str:
        return f"{self.where[0]}-{self.where[1]}"
