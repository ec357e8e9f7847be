"""Small files beside a log: leader epochs, ``partition.metadata``, producer snapshots, ``meta.properties``."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Final, TypeAlias

import crc32c

from tieredstore.errors import BatchCorruptError, ConfigError, excerpt
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.model import Uuid

LeaderEpochs: TypeAlias = tuple[tuple[int, int], ...]
"""``(epoch, first offset)`` pairs. Both columns strictly increase."""

# Allow only the digits that numbers of 31 and 63 bits need. So int() never has to parse a long text.
_EPOCH_LINE: Final = re.compile(r"(\d{1,10})\s+(\d{1,19})", re.ASCII)
_OFFSET_LINE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})\s+(\d{1,10})\s+(\d{1,19})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,10}", re.ASCII)

# version, CRC-32C of all later bytes, number of entries
_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_CRC_END: Final = 6
_SNAPSHOT_VERSION: Final = 1
# The fields of ProducerState in order.
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")


def parse_leader_epochs(raw: bytes) -> LeaderEpochs:
    """Parse a ``leader-epoch-checkpoint``: version 0, the count, then one line ``epoch offset`` per entry."""
    lines = _text(raw, "leader-epoch checkpoint").split("\n")
    # Kafka ends the last line with a newline too. Accept a text without this newline.
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2 or lines[0] != "0" or not _NUMBER.fullmatch(lines[1]):
        raise BatchCorruptError("the leader-epoch checkpoint does not begin with version 0 and a count")
    if int(lines[1]) != len(lines) - 2:
        raise BatchCorruptError(f"the leader-epoch checkpoint states {lines[1]} entries, but has {len(lines) - 2}")
    epochs = tuple(_parse_epoch_line(line) for line in lines[2:])
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(epochs):
        # Start offsets must increase strictly, as epochs do, because an epoch without records has no entry.
        if next_epoch <= epoch or next_start <= start:
            raise BatchCorruptError(
                f"the leader-epoch checkpoint must increase, but epoch {next_epoch} at offset {next_start} follows "
                f"epoch {epoch} at offset {start}"
            )
    return epochs


def format_leader_epochs(epochs: LeaderEpochs) -> bytes:
    """Return the text of a ``leader-epoch-checkpoint``, as Kafka writes it."""
    lines = ["0", str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def truncate_from_end(epochs: LeaderEpochs, end_offset: int) -> LeaderEpochs:
    """Return the epochs that began at ``end_offset`` or before, as Kafka uploads them with a segment that ends there.

    ``end_offset`` is inclusive.
    """
    return tuple(entry for entry in epochs if entry[1] <= end_offset)


def segment_leader_epochs(epochs: LeaderEpochs, start_offset: int, end_offset: int) -> LeaderEpochs:
    """Return the leader epochs of a segment with these offsets (both inclusive). In the result, the first epoch begins
    at ``start_offset``."""
    known = truncate_from_end(epochs, end_offset)
    # As Kafka does, drop the epochs that ended before the segment. The epoch at the segment's first offset stays, with
    # that offset as its start.
    later = tuple(entry for entry in known if entry[1] > start_offset)
    in_force = known[: len(known) - len(later)][-1:]
    return tuple((epoch, start_offset) for epoch, _ in in_force) + later


def have_same_leaders(one: LeaderEpochs, other: LeaderEpochs, start_offset: int, end_offset: int) -> bool:
    """Return True if both histories name the same leaders between two offsets (see :func:`find_difference`).

    The same leaders mean the same records: if two replicas have records with the same offset and epoch, the records are
    the same.
    """
    return find_difference(one, other, start_offset, end_offset) > end_offset


def find_difference(one: LeaderEpochs, other: LeaderEpochs, first: int, last: int) -> int:
    """Return the first offset between ``first`` and ``last`` at which the histories have different leader epochs. If
    there is none, return ``last`` + 1. Compare only offsets that both histories cover.

    But epochs never decrease in a log. So an offset before a history begins differs if the other history has a later
    epoch there.
    """
    if not one or not other:
        return last + 1
    early, late = (one, other) if one[0][1] <= other[0][1] else (other, one)
    earliest, known = late[0]
    later = max(first, next((start for epoch, start in early if epoch > earliest), known))
    if later < min(known, last + 1):
        return later
    starts = {first, known, *(start for _, start in (*one, *other) if first < start <= last)}
    compared = (start for start in sorted(starts) if max(first, known) <= start <= last)
    return next((start for start in compared if epoch_at(one, start) != epoch_at(other, start)), last + 1)


def epoch_at(epochs: LeaderEpochs, offset: int) -> int | None:
    """Return the leader epoch of an offset. Return None if the offset precedes the known history."""
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), None)


def join_epochs(kept: LeaderEpochs, checkpoint: LeaderEpochs) -> LeaderEpochs:
    """Return the epochs of ``checkpoint``, preceded by the epochs of ``kept`` that the broker has dropped from the
    checkpoint.

    When the log start advances, a broker drops earlier epochs. The first remaining epoch then begins at the log start.
    ``kept`` is an earlier checkpoint of the same log, or the epochs of its batches. If ``kept`` and ``checkpoint`` end
    differently, the end of the log was truncated, and ``checkpoint`` wins.
    """
    if not checkpoint:
        return ()
    first_epoch, first_start = checkpoint[0]
    earlier = tuple(entry for entry in kept if entry[0] < first_epoch and entry[1] < first_start)
    started = min([first_start, *(start for epoch, start in kept if epoch == first_epoch)])
    return (*earlier, (first_epoch, started), *checkpoint[1:])


def parse_partition_metadata(raw: bytes) -> Uuid:
    """Return the topic id in a ``partition.metadata`` file (version 0)."""
    fields = dict(_split_field(line) for line in _text(raw, "partition.metadata").splitlines())
    if fields.get("version") != "0":
        raise BatchCorruptError(
            f"partition.metadata has version {excerpt(fields.get('version'))!r}; only version 0 can be read"
        )
    try:
        return Uuid.parse(fields.get("topic_id", ""))
    except ConfigError as error:
        raise BatchCorruptError(f"partition.metadata names no topic id: {error}") from None


def format_partition_metadata(topic_id: Uuid) -> bytes:
    """Return the text of a ``partition.metadata`` file, as Kafka writes it: no final newline."""
    return f"version: 0\ntopic_id: {topic_id}".encode("ascii")


OffsetCheckpoint: TypeAlias = dict[tuple[str, int], int]
"""Offsets by topic and partition, as in the checkpoints at the top of a log directory."""


def parse_offset_checkpoint(raw: bytes) -> OffsetCheckpoint:
    """Parse a checkpoint of a log directory: version 0, the count, then one line ``topic partition offset`` each.

    An empty file has no offsets: a broker creates the file empty, and writes it later.
    """
    if not raw:
        return {}
    version, count, *lines = [*_text(raw, "checkpoint").split("\n")[:-1], "", ""]
    fields = [_OFFSET_LINE.fullmatch(line) for line in lines[:-2]]
    if version != "0" or not _NUMBER.fullmatch(count) or int(count) != len(fields) or None in fields:
        raise BatchCorruptError(
            "the checkpoint is not of version 0, or does not have the number of entries that it states"
        )
    return {(each[1], int(each[2])): int(each[3]) for each in fields if each is not None}


def format_offset_checkpoint(offsets: OffsetCheckpoint) -> bytes:
    """Return the text of a checkpoint of a log directory, as Kafka writes it."""
    lines = ["0", str(len(offsets)), *(f"{topic} {number} {offset}" for (topic, number), offset in offsets.items())]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def parse_broker_id(raw: bytes) -> int | None:
    """Parse the broker's id in ``meta.properties``: ``node.id``, or ``broker.id`` before KRaft. Return None if neither
    is set.
    """
    properties = _parse_meta(raw)
    # Look for KRaft's name of the property first, because a migrated broker may have both names.
    text = properties.get("node.id", properties.get("broker.id"))
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) > MAX_INT32:
        raise BatchCorruptError(
            f"meta.properties has the broker id {excerpt(text)!r}, which is not a number from 0 to {MAX_INT32}"
        )
    return int(text)


def parse_cluster_id(raw: bytes) -> str | None:
    """Parse the cluster's id in ``meta.properties``. Return None if it is not set."""
    return _parse_meta(raw).get("cluster.id")


def _parse_meta(raw: bytes) -> Mapping[str, str]:
    import javaproperties  # noqa: PLC0415  it imports an HTTP client, and few processes read this file

    try:
        return javaproperties.loads(_text(raw, "meta.properties"))
    except ValueError as error:
        raise BatchCorruptError(f"meta.properties cannot be parsed: {error}") from None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The broker's state of one idempotent producer.

    ``last_sequence`` and ``last_offset`` belong to the last record of the producer's last batch. The first offset of
    that batch is ``offset_delta`` lower. ``coordinator_epoch`` and ``current_txn_first_offset`` are -1 outside of
    transactions.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_producer_snapshot(raw: bytes) -> tuple[ProducerState, ...]:
    """Return the entries of a ``.snapshot`` file (version 1). Raise BatchCorruptError if its CRC, version or size is
    wrong.
    """
    if len(raw) < _SNAPSHOT_HEADER.size:
        raise BatchCorruptError(f"the producer snapshot has {len(raw)} bytes, too few for its header")
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(raw)
    if version != _SNAPSHOT_VERSION:
        raise BatchCorruptError(
            f"the producer snapshot has version {version}; only version {_SNAPSHOT_VERSION} can be read"
        )
    # Check the CRC before the count is used. Otherwise, a damaged count would be reported as a wrong size.
    if crc != crc32c.crc32c(raw[_SNAPSHOT_CRC_END:]):
        raise BatchCorruptError("the producer snapshot is damaged: its CRC does not match")
    if count < 0 or len(raw) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
        raise BatchCorruptError(
            f"the producer snapshot states {count} entries, which do not fit its size of {len(raw)} bytes"
        )
    return tuple(ProducerState(*entry) for entry in _SNAPSHOT_ENTRY.iter_unpack(raw[_SNAPSHOT_HEADER.size :]))


def open_transactions(states: Iterable[ProducerState]) -> dict[int, int]:
    """Return the first offset of each open transaction, by producer id."""
    firsts = ((state.producer_id, state.current_txn_first_offset) for state in states)
    return {producer: first for producer, first in firsts if first >= 0}


def format_producer_snapshot(states: Iterable[ProducerState]) -> bytes:
    """Return the bytes of a ``.snapshot`` file, as Kafka writes it."""
    entries = [_SNAPSHOT_ENTRY.pack(*astuple(state)) for state in states]
    # The checksum includes the count, but not the version, which comes before the checksum.
    covered = len(entries).to_bytes(4, "big") + b"".join(entries)
    return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c.crc32c(covered)) + covered


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BatchCorruptError(f"the {name} is not UTF-8 text") from None


def _parse_epoch_line(line: str) -> tuple[int, int]:
    match = _EPOCH_LINE.fullmatch(line)
    epoch, start = (int(number) for number in match.groups()) if match else (MAX_INT32 + 1, 0)
    if epoch > MAX_INT32 or start > MAX_OFFSET:
        raise BatchCorruptError(f"the leader-epoch checkpoint has the line {line[:60]!r}, not an epoch and an offset")
    return epoch, start


def _split_field(line: str) -> tuple[str, str]:
    name, separator, value = line.partition(": ")
    if not separator:
        raise BatchCorruptError(
            f"partition.metadata has the line {line[:60]!r}, which is not of the form 'name: value'"
        )
    return name, value
