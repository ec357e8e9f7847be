"""``_metadata``: a partition's list of segments for Pinterest's consumer.

If ``_metadata`` exists, Pinterest's consumer reads only the segments in this list, and looks up times in it. So the
list must have every whole segment, and no deleted segment. For this, a writer first stores a segment, then adds its
entry; a deleter first removes the entry, then deletes the segment.

The object is JSON as Gson writes it. Each change is a conditional replace.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import Field, Strict, TypeAdapter, ValidationError

from tieredstore.errors import ObjectNotFoundError, PreconditionFailedError, StoreUnavailableError
from tieredstore.format.keys import Suffix, parse_key, partition_of
from tieredstore.limits import MAX_INT64

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicIdPartition

METADATA: Final = "_metadata"

_logger: Final = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 << 20
"""The largest object that is read: enough for about 700,000 segments."""
_TRIES: Final = 20

_Long: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=MAX_INT64)]


@dataclass(frozen=True, slots=True, order=True)
class NamedSegment:
    """One segment in ``_metadata``. Times must ascend with offsets, so an entry's time may differ from the modification
    time of the broker's log file."""

    timestamp_ms: Annotated[_Long, Field(alias="timestamp")]
    base_offset: Annotated[_Long, Field(alias="baseOffset")]


@dataclass(frozen=True, slots=True)
class _TimeIndex:
    entries: tuple[NamedSegment, ...]


@dataclass(frozen=True, slots=True)
class _Metadata:
    timeindex: _TimeIndex


@dataclass(frozen=True, slots=True)
class _Document:
    metadata: _Metadata


_DOCUMENT: Final = TypeAdapter(_Document)


def parse_metadata(raw: bytes) -> tuple[NamedSegment, ...] | None:
    """Parse the entries; None if the object is damaged."""
    try:
        return _DOCUMENT.validate_json(raw).metadata.timeindex.entries
    except ValidationError:
        return None


def metadata_bytes(where: TopicIdPartition, entries: Iterable[NamedSegment], etag: str | None) -> bytes:
    """Return the content for ``_metadata``. ``etag`` is the etag of the object that this content will replace, or
    None."""
    rows = [
        {"timestamp": entry.timestamp_ms, "relativeOffset": 0, "baseOffset": entry.base_offset}
        for entry in sorted(entries)
    ]
    document: dict[str, object] = {
        "topicPartition": {"hash": 0, "partition": where.partition, "topic": where.topic},
        "metadata": {"timeindex": {"entries": rows, "timeIndexType": "TOPIC_PARTITION", "size": len(rows)}},
    }
    if etag is not None:
        document["loadHash"] = etag
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def complete_entries(
    entries: Collection[NamedSegment], logs: Collection[int], whole: Mapping[int, int]
) -> tuple[NamedSegment, ...]:
    """Drop the entries whose log is missing, add an entry for each whole segment that has none, and return the result.

    ``logs`` has the base offsets of stored logs. ``whole`` maps the base offset of each whole segment to a time.
    Readers sort entries by time, so a new entry gets a time between those of its neighbours by offset.
    """
    kept = {entry for entry in entries if entry.base_offset in logs}
    known = {entry.base_offset: entry.timestamp_ms for entry in kept}
    missing = sorted(set(whole) - set(known))
    if not missing:
        return tuple(sorted(kept))
    offsets = sorted({*known, *missing})
    # Map each offset to the smallest known time of that offset and all later offsets.
    latest = accumulate((known.get(offset, MAX_INT64) for offset in reversed(offsets)), min)
    bounds = dict(zip(reversed(offsets), latest, strict=True))
    least = 0
    for offset in offsets:
        if offset not in known:
            known[offset] = max(least, min(whole[offset], bounds[offset]))
            kept.add(NamedSegment(known[offset], offset))
        least = max(least, known[offset])
    return tuple(sorted(kept))


class MetadataKeeper:
    """Keeps each partition's ``_metadata`` up to date with its segments. Several threads and processes may do so at
    once."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        """Create a keeper. ``store`` must show the raw layout's objects under the plugin's keys. All keys begin with
        ``prefix``."""
        self._store, self._prefix = store, prefix

    def name_all(self, folder: str, times: Mapping[int, int] | None = None) -> None:
        """Add entries for all whole segments of a partition. ``times`` maps the base offsets of the caller's segments
        to the modification times of their log files.

        ``folder`` is the partition's folder in the plugin's keys. The call makes one listing and two small requests.
        """
        known = times or {}

        def complete(entries: tuple[NamedSegment, ...]) -> tuple[NamedSegment, ...]:
            logs, whole = self._list_stored(folder)
            return complete_entries(entries, logs, whole | {base: known[base] for base in known if base in whole})

        is_certain = False
        while not is_certain:
            # If ``_change`` added entries of other segments than the caller's, list the folder again, because another
            # process may have deleted those segments since the listing.
            added, was_there = self._change(folder, complete, creates=True)
            is_certain = was_there and not added - set(known)

    def forget(self, folder: str, base_offsets: Collection[int], *, are_deleted: bool = False) -> None:
        """Remove the entries of segments. Call this before deleting their files, and again afterwards with
        ``are_deleted=True``.

        The second call replaces ``_metadata`` even if no entry changes. If an uploader listed the files before the
        deletion, its conditional write then fails, and it lists the files again.
        """

        def without(entries: tuple[NamedSegment, ...]) -> tuple[NamedSegment, ...]:
            return tuple(entry for entry in entries if entry.base_offset not in base_offsets)

        self._change(folder, without, replaces=are_deleted)

    def _list_stored(self, folder: str) -> tuple[set[int], dict[int, int]]:
        logs: set[int] = set()
        whole: dict[int, int] = {}
        for info in self._store.list(folder):
            key = parse_key(self._prefix, info.key)
            if key is not None and key.suffix is Suffix.LOG:
                logs.add(key.start_offset)
            elif key is not None and key.suffix is Suffix.MANIFEST:
                whole[key.start_offset] = info.modified_ms or 0
        return logs, whole

    def _change(
        self,
        folder: str,
        change: Callable[[tuple[NamedSegment, ...]], tuple[NamedSegment, ...]],
        *,
        creates: bool = False,
        replaces: bool = False,
    ) -> tuple[set[int], bool]:
        """Apply ``change`` to the entries. Return the base offsets that ``change`` added, and False if this call
        created the object (True otherwise)."""
        key = f"{folder}{METADATA}"
        where = partition_of(folder.removeprefix(self._prefix))
        assert where is not None
        for _ in range(_TRIES):
            entries, etag = self._read(key)
            if etag is None and not creates:
                return set(), True
            wanted = change(entries or ())
            if (wanted == entries and not replaces) or (etag is None and not wanted):
                return set(), True
            content = metadata_bytes(where, wanted, etag)
            try:
                if etag is None:
                    self._store.put(key, content, if_absent=True)
                else:
                    self._store.replace(key, content, etag)
            except PreconditionFailedError:
                continue
            added = {entry.base_offset for entry in wanted} - {entry.base_offset for entry in entries or ()}
            return added, etag is not None
        raise StoreUnavailableError(
            f"{key!r} cannot be updated: {_TRIES} times, another process changed it first; wait until fewer processes "
            "upload or delete segments of this partition, then try again"
        )

    def _read(self, key: str) -> tuple[tuple[NamedSegment, ...] | None, str | None]:
        """Return the entries and the object's etag. The entries are None if the object is absent or damaged. The etag
        is None if the object is absent.
        """
        try:
            # Read the etag before the content: if another process replaces the object between the two reads, the later
            # conditional write fails.
            etag = self._store.head(key).etag or ""
            entries = parse_metadata(self._store.get_small(key, _MAX_BYTES) or b"")
        except ObjectNotFoundError:
            return None, None
        if entries is None:
            _logger.error("%s is damaged; it is rebuilt from the stored segments", key)
            return None, etag
        return tuple(sorted(entries)), etag
