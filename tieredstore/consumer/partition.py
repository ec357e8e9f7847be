"""What a consumer knows of one partition that is assigned to it."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tieredstore.model import TopicPartition, Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.consumer.looks import Start
    from tieredstore.consumer.placement import LiveExtent
    from tieredstore.consumer.stored_stream import StoredStream


class Phase(enum.Enum):
    """Where a partition's next record comes from."""

    LOOKING = "looking"
    """It is being found out."""
    BUCKET = "bucket"
    LIVE = "live"
    """It is assigned in the client."""
    WAITING = "waiting"
    """The bucket has no more yet; it is looked again at ``due_at``."""
    FAILED = "failed"
    """Its records are lost or damaged, and it was not said to go on behind."""
    IDLE = "idle"
    """It has no offset to start at, and waits for a seek."""


@dataclass(eq=False, slots=True)
class Partition:
    """One partition while it is assigned. ``generation`` tells answers that come too late from those that do not."""

    where: TopicPartition
    generation: int
    start: Start
    position: int | None = None
    """The offset that is handed out next; None until the start is known."""
    phase: Phase = Phase.LOOKING
    paused: bool = False
    has_given: bool = False
    """Whether anything was handed out, so that there is an offset to commit."""
    stored: int | None = None
    """What ``store_offsets`` said."""
    committed: int | None = None
    """What was committed last by itself."""
    last_epoch: int = -1
    topic_id: Uuid | None = None
    live: LiveExtent | None = None
    """The broker's offsets when it was last asked."""
    lineage: Lineage | None = None
    stream: StoredStream | None = None
    broker_from: int | None = None
    """From where on the broker is preferred whatever the mode, since its log ended there before what was read."""
    assigned_at: int = -1
    """Where the client was told to start, if it is live."""
    has_spoken: bool = False
    """Whether a message has come from the client since; until then it does not tell the position."""
    hole_at: int = -1
    """Where the client took what compaction left for too large, since it was told to start."""
    stands_at: tuple[int, float] | None = None
    """Where it was when it was last looked whether it stands still, and since when."""
    revived_at: tuple[int, int] | None = None
    """Where it was assigned anew since it stood still, and the broker's end then."""
    held: deque[Any] = field(default_factory=deque[Any])
    """Messages of the client that were taken and not given yet."""
    error: Exception | None = None
    due_at: float = 0.0
    """When to look again."""
    is_listed_anew: bool = False
    """Whether the next look is to list the bucket's topic as a whole: its log is not what it was when it was listed."""
    failing_since: float | None = None
    tries: int = 0
    eof_at: int = -1
    """Where the end was told of last."""
    side: str | None = None
    """Where it was read from last."""
    changes: int = 0
    """How often it changed sides."""
    last_timestamp_ms: int = -1
    """That of the last record that was given, as far as it was looked at."""

    @property
    def is_live(self) -> bool:
        """Whether the client has it."""
        return self.phase is Phase.LIVE

    @property
    def is_at_end(self) -> bool:
        """Whether its end was told of, and nothing was given since."""
        return self.position is not None and not self.held and self.eof_at >= self.position
