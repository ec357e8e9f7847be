"""Progress of a partition's upload: a small object that is replaced after each segment.

The object's key is ``<prefix>!tieredstore/watermarks/<topic>-<topic id>/<partition>.json``. A lost or damaged watermark
is rebuilt from the segments in the bucket. But the offsets that could not be uploaded are recorded only in the
watermark.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field, Strict, TypeAdapter

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from tieredstore.kafka.checkpoints import LeaderEpochs, segment_leader_epochs
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.versions import WATERMARK

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

MAX_BYTES: Final = 8 << 20
"""Maximum size of a watermark. A larger object is invalid."""

_FOLDER: Final = "!tieredstore/watermarks/"
_HOLES: Final = "!tieredstore/holes/"
_MARK: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-([A-Za-z0-9_-]{22})/(0|[1-9]\d{0,9})", re.ASCII)
_LONGEST_REASON: Final = 500

_Offset: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=MAX_INT64)]
_Number: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=MAX_INT32)]
_NumberIfKnown: TypeAlias = Annotated[int, Strict(), Field(ge=-1, le=MAX_INT32)]
_Epochs: TypeAlias = tuple[tuple[_Number, _Offset], ...]
_UuidText: TypeAlias = Annotated[str, AfterValidator(lambda text: str(Uuid.parse(text)))]


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets (both ends inclusive) that were not uploaded, with reason, time, and broker.

    ``quarantine`` is the key prefix under which the uploader saved the remaining bytes of these offsets; None if no
    bytes remained. ``leader_epochs`` are the epochs of the records, as far back as known (see :func:`epochs_within`).
    The epochs are empty if the offsets have no records.
    """

    first_offset: _Offset
    last_offset: _Offset
    reason: str
    at_ms: _Offset
    broker_id: _NumberIfKnown = -1
    quarantine: str | None = None
    leader_epochs: _Epochs = ()

    def extends(self, last: Hole) -> bool:
        """Return True if this hole and ``last``, which ends right before it, can form one hole.

        They cannot if the epochs of this hole's first records are unknown. These records would then seem to be of the
        last epoch of ``last``.
        """
        epochs, before = self.leader_epochs, last.leader_epochs
        is_known = not epochs or not before or epochs[0][1] <= self.first_offset or epochs[0][0] == before[-1][0]
        is_same = (last.last_offset + 1, last.reason) == (self.first_offset, self.reason)
        return is_known and is_same and self.quarantine is None and last.quarantine is None

    def without(self, first: int, last: int) -> Iterator[Hole]:
        """Yield the parts of the hole without the offsets from ``first`` to ``last`` (inclusive). The result has no
        part, one part or two parts."""
        if last < self.first_offset or self.last_offset < first:
            yield self
            return
        for begin, end in ((self.first_offset, first - 1), (last + 1, self.last_offset)):
            if begin <= end:
                epochs = epochs_within(self.leader_epochs, begin, end)
                yield dataclasses.replace(self, first_offset=begin, last_offset=end, leader_epochs=epochs)


@dataclass(frozen=True, slots=True)
class MoveBack:
    """A move of the watermark back from ``from_offset`` to ``to_offset``, where a newer leader epoch begins."""

    from_offset: _Offset
    to_offset: _Offset
    leader_epoch: _NumberIfKnown
    at_ms: _Offset


@dataclass(frozen=True, slots=True)
class ShippedSegment:
    """The last uploaded segment."""

    id: _UuidText
    base_offset: _Offset
    end_offset: _Offset


@dataclass(frozen=True, slots=True)
class Watermark:
    """Progress of a partition: all offsets before ``next_offset`` are uploaded, except the holes.

    ``leader_epoch`` is the greatest leader epoch of all writers of this watermark, or -1. ``segment`` is the segment
    that was last uploaded or found in the store; None if there is none since the watermark was last moved back.
    """

    where: TopicIdPartition
    next_offset: int
    leader_epoch: int
    broker_id: int = -1
    at_ms: int = 0
    segment: ShippedSegment | None = None
    holes: tuple[Hole, ...] = ()
    moved_back: tuple[MoveBack, ...] = ()

    def behind(
        self, segment: ShippedSegment | None, next_offset: int, epoch: int, broker_id: int, at_ms: int
    ) -> Watermark:
        """Return the watermark moved to ``next_offset``; ``segment``, if given, was uploaded now or found in the
        store."""
        return dataclasses.replace(
            self,
            next_offset=next_offset,
            leader_epoch=max(epoch, self.leader_epoch),
            broker_id=broker_id,
            at_ms=at_ms,
            segment=segment or self.segment,
        )

    def over(self, hole: Hole, epoch: int) -> Watermark:
        """Return the watermark moved past ``hole``: offsets that cannot be uploaded."""
        last = self.holes[-1] if self.holes else None
        holes = (*self.holes, hole)
        # Extend the previous hole (offsets recorded as lost): adjacent lost segments form one hole.
        if last is not None and hole.extends(last):
            epochs: LeaderEpochs = ()
            if last.leader_epochs and hole.leader_epochs:
                last_epoch, start = last.leader_epochs[-1]
                later = (entry for entry in hole.leader_epochs if entry[0] > last_epoch and entry[1] > start)
                epochs = (*last.leader_epochs, *later)
            joined = dataclasses.replace(last, last_offset=hole.last_offset, at_ms=hole.at_ms, leader_epochs=epochs)
            holes = (*self.holes[:-1], joined)
        return dataclasses.replace(
            self.behind(None, hole.last_offset + 1, epoch, hole.broker_id, hole.at_ms), holes=holes
        )

    def back(self, to_offset: int, epoch: int, broker_id: int, at_ms: int) -> Watermark:
        """Return the watermark moved back to ``to_offset``, where a newer leader epoch begins with other records than
        the uploaded ones.
        """
        move = MoveBack(self.next_offset, to_offset, epoch, at_ms)
        return dataclasses.replace(
            self.behind(None, to_offset, epoch, broker_id, at_ms),
            segment=None,
            moved_back=(*self.moved_back, move),
            # Drop holes (offsets recorded as lost) from ``to_offset`` on, because the leader of the newer epoch uploads
            # these offsets again, or records new holes.
            holes=tuple(part for hole in self.holes for part in hole.without(to_offset, MAX_INT64)),
        )

    def fill(self, shipped: Iterable[tuple[int, int]]) -> Watermark:
        """Return the watermark without the parts of holes that were uploaded since. The ends in ``shipped`` are
        inclusive."""
        holes = list(self.holes)
        for first, last in shipped:
            holes = [part for hole in holes for part in hole.without(first, last)]
        return dataclasses.replace(self, holes=tuple(holes))

    @property
    def missing_extents(self) -> list[tuple[int, int]]:
        """First and last offset of each hole."""
        return [(hole.first_offset, hole.last_offset) for hole in self.holes]

    @property
    def missing(self) -> int:
        """Number of offsets in the holes."""
        return sum(hole.last_offset - hole.first_offset + 1 for hole in self.holes)

    def to_bytes(self) -> bytes:
        """Return the object's content."""
        named = {"topic": self.where.topic, "topic_id": str(self.where.topic_id), "partition": self.where.partition}
        fields = dataclasses.asdict(self)
        del fields["where"]
        return WATERMARK.to_bytes({**named, **fields})

    @classmethod
    def parse(cls, raw: bytes | None, where: TopicIdPartition, made_id: Uuid | None = None) -> Watermark:
        """Parse an object's content. ``raw`` is None if the object is too large.

        Raise CorruptDataError if the content is not the partition's watermark, and NewerVersionError if a later release
        wrote the object.

        If the layout stores no topic ids, ``made_id`` is the id derived from the topic's name. A derived id is accepted
        in place of any other id.

        Raise ConfigError if ``where`` and the watermark have different ids and neither id is derived from the topic's
        name. In this case the topic was re-created.
        """
        document = WATERMARK.parse(_adapter(), raw, watermark_key("", where, is_derived=made_id is not None))
        document.require(where, made_id)
        if document.topic_id not in {str(where.topic_id), str(made_id)} and where.topic_id != made_id:
            raise ConfigError(
                f"topic {where.topic!r} was created again: its id on this broker is {where.topic_id}, but the stored "
                f"objects are of {document.topic_id}, under the same names. Nothing is uploaded. Set another "
                "key.prefix for the new topic, or remove the old topic's objects and its watermark"
            )
        return cls(
            where,
            document.next_offset,
            document.leader_epoch,
            document.broker_id,
            document.at_ms,
            document.segment,
            document.holes,
            document.moved_back,
        )


@dataclass(frozen=True, slots=True)
class _Document:
    """The watermark's JSON object. With strict types and bounds, pydantic refuses invalid documents."""

    topic: str
    topic_id: _UuidText
    partition: _Number
    next_offset: _Offset
    leader_epoch: _NumberIfKnown
    broker_id: _NumberIfKnown
    at_ms: _Offset
    segment: ShippedSegment | None
    holes: tuple[Hole, ...]
    moved_back: tuple[MoveBack, ...]

    def require(self, where: TopicIdPartition, made_id: Uuid | None) -> None:
        """Raise CorruptDataError if the watermark is of another partition. If ids are derived, accept any topic id."""
        topic_id = self.topic_id if made_id is not None else str(where.topic_id)
        if (self.topic, self.topic_id, self.partition) != (where.topic, topic_id, where.partition):
            raise CorruptDataError(
                f"the watermark of {where} is that of another partition: {self.topic}-{self.partition}, topic id "
                f"{self.topic_id}"
            )


@functools.cache
def _adapter() -> TypeAdapter[_Document]:
    return TypeAdapter(_Document)


def read_watermark(
    store: ObjectStore, prefix: str, where: TopicIdPartition, made_id: Uuid | None = None
) -> Watermark | None:
    """Read a partition's watermark, with one request. Return None if the partition has none. Raise the errors of
    ``parse``."""
    try:
        return Watermark.parse(store.get_small(watermark_key(prefix, where), MAX_BYTES), where, made_id)
    except ObjectNotFoundError:
        return None


class StoredWatermarks:
    """A bucket's watermarks, without their holes. Reads one again only if its object has changed. Not thread-safe."""

    def __init__(self, source: RemoteStorageManager) -> None:
        self._source = source
        self._known: dict[TopicIdPartition, tuple[ObjectInfo, Watermark | None]] = {}

    def look(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Update the watermarks of these partitions. This takes one listing, and one request for each changed
        watermark.

        Log a corrupt watermark, and treat it as a watermark that was never moved back.
        """
        layout = self._source.layout
        keys = {
            watermark_key(layout.prefix, where, is_derived=layout.derived_id(where.topic) is not None): where
            for where in partitions
        }
        if not keys:
            return
        listed: dict[TopicIdPartition, ObjectInfo] = {}
        last = max(keys)
        common = os.path.commonprefix([*keys])  # noqa: RUF071  a listing's prefix is a text, not a path
        for info in self._source.store.list(common):
            if info.key in keys:
                listed[keys[info.key]] = info
            if info.key >= last:
                break
        changed = {where: info for where, info in listed.items() if not self._knows(where, info)}
        for where in keys.values():
            if where not in listed:
                self._known.pop(where, None)
        if changed:
            with ThreadPool(READERS, "tieredstore-watermarks") as pool:
                read = in_parallel(pool, self._find, changed, at_once=4 * READERS)
                self._known.update(zip(changed, zip(changed.values(), read, strict=True), strict=True))

    def of(self, where: TopicIdPartition) -> Watermark | None:
        """Return a partition's watermark without its holes, as of the last ``look``. Return None if it is absent or
        corrupt."""
        return self._known[where][1] if where in self._known else None

    def _find(self, where: TopicIdPartition) -> Watermark | None:
        # Keep no holes, because there may be many, and long-lived readers keep the watermarks of all partitions.
        mark = find_watermark(self._source, where)
        return None if mark is None else dataclasses.replace(mark, holes=())

    def _knows(self, where: TopicIdPartition, info: ObjectInfo) -> bool:
        # A folder's listing has no etags, so compare times and sizes. Each move back adds an entry to the watermark, so
        # its size grows.
        is_told = info.etag is not None or info.modified_ms is not None
        return is_told and where in self._known and self._known[where][0] == info


def find_watermark(source: RemoteStorageManager, where: TopicIdPartition) -> Watermark | None:
    """Read a partition's watermark, with one request. Return None if there is none. Log a corrupt watermark, and return
    None.
    """
    made_id = source.layout.derived_id(where.topic)
    try:
        return read_watermark(source.store, source.layout.prefix, where, made_id)
    except CorruptDataError as error:
        _logger.warning("%s", error)
        return None


def hole_key(prefix: str, where: TopicIdPartition) -> str:
    """Return the key of a marker object, a hint that the partition's watermark has holes."""
    return f"{prefix}{_HOLES}{where.topic}-{where.topic_id}/{where.partition}"


def hole_prefix(prefix: str) -> str:
    """Return the prefix that the keys of all marker objects have in common."""
    return f"{prefix}{_HOLES}"


def partition_of_hole(prefix: str, key: str) -> TopicIdPartition | None:
    """Return the partition that the key of a marker object names; None for any other key."""
    match = _MARK.fullmatch(key.removeprefix(hole_prefix(prefix)))
    if match is None:
        return None
    try:
        return TopicIdPartition(Uuid.parse(match[2]), match[1], int(match[3]))
    except ConfigError:
        return None


def epochs_within(epochs: LeaderEpochs, first: int, last: int) -> LeaderEpochs:
    """Return the leader epochs of the offsets ``first`` to ``last``, as far back as the epochs are known.

    If none of these epochs is known any more, return the first known epoch, although it begins after ``last``. A
    replica with this epoch also has the same records before the epoch.
    """
    if epochs and epochs[0][1] <= first:
        return segment_leader_epochs(epochs, first, last)
    return tuple(entry for entry in epochs if entry[1] <= last) or epochs[:1]


def watermark_key(prefix: str, where: TopicIdPartition, *, is_derived: bool = False) -> str:
    """Return the key of a partition's watermark. If the topic id is derived from the topic's name (``is_derived``), the
    key does not contain it.
    """
    return f"{prefix}{_FOLDER}{where.topic}{'' if is_derived else f'-{where.topic_id}'}/{where.partition}.json"


def reason_of(error: object) -> str:
    """Return the reason of a hole as a sentence of bounded length."""
    return str(error)[:_LONGEST_REASON]
