"""Consumer groups with their state in the store: the owner and the position of each partition.

::

    <own folder>/groups/<group>/<topic>/members/<member>        {"beat": n}
    <own folder>/groups/<group>/<topic>/partitions/<partition>  {"owner", "generation", "position"}

A group's objects change only by conditional replace. Each member watches the heartbeats of the other members. A member
counts as dead if its heartbeat has not changed for 15 s of the watcher's clock.

Taking over a dead member's partition raises the partition's generation, so that the old owner's next commit raises
FencedError.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import NonNegativeInt, TypeAdapter

from tieredstore.errors import ConfigError, FencedError, ObjectNotFoundError, PreconditionFailedError, TieredStoreError
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.queue.queues import Claim, GroupMember, GroupPartition, Position, name_partitions
from tieredstore.versions import GROUP_MEMBER, GROUP_PARTITION

BEAT_S: Final = 5.0
"""Seconds between two heartbeats of a member: 0.2 PUTs per second."""

PATIENCE_S: Final = 15.0
"""Seconds without a new heartbeat after which a member counts as dead."""

_logger: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(slots=True)
class _Owned:
    generation: int
    position: Position | None
    etag: str


class StoreGroup(GroupMember):
    """One member of a group. ``tick``, ``commit`` and ``leave`` are for one thread; another thread sends heartbeats.

    A process that is suspended for ``PATIENCE_S`` loses its partitions, and its later commits raise FencedError. Tests
    set the clock and the intervals.
    """

    def __init__(
        self,
        folder: OwnFolder,
        group: str,
        topic: str,
        partitions: Callable[[], int],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        beat_s: float = BEAT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not _NAME.fullmatch(group) or group in {".", ".."}:
            raise ConfigError(f"invalid group name {group!r:.120}: use letters, digits, dots, dashes and underscores")
        self.member: str = uuid.uuid4().hex
        self._folder = folder
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._monotonic = monotonic
        self._beat_s = beat_s
        self._patience_s = patience_s
        self._owned: dict[int, _Owned] = {}
        # Partitions that this member has begun to take, and has not given up. After a lost answer, such a partition may
        # belong to this member in the store alone.
        self._begun: set[int] = set()
        self._version = 0
        # For each other member: the number of its last heartbeat, and the time at which this member first saw that
        # number.
        self._beats: dict[str, tuple[int, float]] = {}
        self._ticked_s = self._next_tick_s = monotonic()
        self._beat_number = 0
        self._beat_etag: str | None = None
        self._stopped = threading.Event()
        self._beater: threading.Thread | None = None

    def claims(self) -> dict[int, Claim]:
        """Return this member's partitions. The ``term`` of each claim is the partition's generation."""
        return {partition: Claim(owned.generation, owned.position) for partition, owned in self._owned.items()}

    @property
    def version(self) -> int:
        """Return a number that changes whenever the claims change."""
        return self._version

    def tick(self) -> None:
        """Take free partitions, and give up partitions that belong to other members. Do this at most every ``beat_s``
        seconds."""
        if self._beater is None:
            self._join()
        now_s = self._monotonic()
        if now_s < self._next_tick_s:
            return
        has_lost = now_s - self._ticked_s >= self._patience_s and self._forget_lost()
        self._next_tick_s = now_s + self._beat_s
        if has_lost:
            return  # the reader must drop these partitions before this member takes them again
        members = self._find_living(now_s)
        self._ticked_s = now_s
        for partition in range(self._partitions()):
            is_own = members[partition % len(members)] == self.member
            if is_own and partition not in self._owned:
                self._begun.add(partition)
                self._take(partition, members)
            elif not is_own and partition in self._begun:
                self._give_up(partition)
                self._begun.discard(partition)

    def commit(self, positions: dict[int, Position]) -> None:
        """Commit the positions, one partition at a time.

        Try to commit all positions. Then raise FencedError if other members own some of the partitions."""
        lost: list[int] = []
        for partition, position in sorted(positions.items()):
            owned = self._owned.get(partition)
            if owned is None:
                lost.append(partition)
            elif owned.position != position:
                try:
                    self._write(partition, owned, position, self.member)
                except FencedError:
                    lost.append(partition)
        if lost:
            raise FencedError(self._describe_loss(*lost))

    def leave(self) -> None:
        """Give up all partitions, so that other group members can take them at once."""
        self._stopped.set()
        if self._beater is not None:
            self._beater.join(self._beat_s)  # a running heartbeat would recreate the member
        for partition in list(self._owned):
            self._give_up(partition)
        self._folder.store.delete([self._member_key(self.member)])

    def beat(self) -> None:
        """Announce that this member is alive. A thread calls this method every ``beat_s``."""
        key, body = self._member_key(self.member), GROUP_MEMBER.to_bytes({"beat": self._beat_number + 1})
        etag, self._beat_etag = self._beat_etag, None
        try:
            etag = etag or self._folder.store.head(key).etag
        except ObjectNotFoundError:
            # The other members have removed this member, because its heartbeat had stopped too long ago. So join the
            # group again.
            self._folder.store.put(key, body, if_absent=True)
        else:
            self._beat_etag = self._folder.store.replace(key, body, etag or "")
        self._beat_number += 1

    # --- the store ---

    def _join(self) -> None:
        # Ignore this error. The object exists already, because an earlier put succeeded and its answer was lost.
        with contextlib.suppress(PreconditionFailedError):
            self._folder.store.put(self._member_key(self.member), GROUP_MEMBER.to_bytes({"beat": 0}), if_absent=True)
        self._beater = threading.Thread(target=self._beat, name="tieredstore-pubsub-beat", daemon=True)
        self._beater.start()

    def _beat(self) -> None:
        while not self._stopped.wait(self._beat_s):
            try:
                self.beat()
            except TieredStoreError as error:
                # Only log a warning, because the next heartbeat may succeed. If no heartbeat succeeds in time, other
                # members take the partitions, and commits raise FencedError.
                _logger.warning("group %s: a heartbeat failed: %s", self._group, error)

    def _find_living(self, now_s: float) -> list[str]:
        """Return the group members that seem alive, including this member. All members get the same order."""
        beginning = self._folder.key("groups", self._group, self._topic, "members", "")
        living = {self.member}
        for info in self._folder.store.list(beginning):
            member = info.key.removeprefix(beginning)
            if member == self.member:
                continue
            try:
                beat = self._folder.read(info.key, GROUP_MEMBER, _MEMBER).beat
            except ObjectNotFoundError:
                continue  # the member has just left
            known, since_s = self._beats.get(member, (-1, now_s))
            self._beats[member] = (beat, since_s if beat == known else now_s)
            if now_s - self._beats[member][1] < self._patience_s:
                living.add(member)
            elif now_s - self._beats[member][1] > 20 * self._patience_s:
                self._folder.store.delete([info.key])
        return sorted(living)

    def _forget_lost(self) -> bool:
        """Drop the partitions that other members have taken while this process was suspended, or had no access to the
        store. Return True if there were any."""
        had = len(self._owned)
        for partition, owned in list(self._owned.items()):
            stored = self._read_state(partition)
            if stored is None or (stored[0].owner, stored[0].generation) != (self.member, owned.generation):
                self._drop(partition)
        return len(self._owned) < had

    def _take(self, partition: int, members: list[str]) -> None:
        key = self._partition_key(partition)
        stored = self._read_state(partition)
        try:
            if stored is None:
                self._folder.store.put(key, GROUP_PARTITION.to_bytes(_document(self.member, 1, None)), if_absent=True)
                stored = self._read_state(partition)
                if stored is not None and stored[0] == GroupPartition(partition, self.member, 1, None):
                    self._own(partition, _Owned(1, None, stored[1]))
                return
            state = stored[0]
            if state.owner is not None and state.owner != self.member and state.owner in members:
                return  # the owner is alive, and will give up the partition itself
            generation = (state.generation or 0) + 1
            document = _document(self.member, generation, state.position)
            etag = self._folder.store.replace(key, GROUP_PARTITION.to_bytes(document), stored[1])
        except PreconditionFailedError:
            return  # another member was faster
        self._own(partition, _Owned(generation, state.position, etag))

    def _own(self, partition: int, owned: _Owned) -> None:
        self._owned[partition] = owned
        self._version += 1

    def _drop(self, partition: int) -> _Owned | None:
        self._version += 1
        return self._owned.pop(partition, None)

    def _give_up(self, partition: int) -> None:
        # Drop the partition before the write, because after a lost answer another member may take it at once. After an
        # error the next tick gives it up again, because no other member takes a partition from a living owner.
        owned = self._drop(partition)
        if owned is None:
            stored = self._read_state(partition)
            if stored is None or stored[0].owner != self.member:
                return
            owned = _Owned(stored[0].generation or 0, stored[0].position, stored[1])
        with contextlib.suppress(FencedError):  # another member has already taken the partition
            self._write(partition, owned, owned.position, None)

    def _write(self, partition: int, owned: _Owned, position: Position | None, owner: str | None) -> None:
        key = self._partition_key(partition)
        body = GROUP_PARTITION.to_bytes(_document(owner, owned.generation, position))
        try:
            owned.etag = self._folder.store.replace(key, body, owned.etag)
        except PreconditionFailedError:
            # Read the state again, because either another member has changed it, or an earlier commit of this member
            # succeeded and its answer was lost.
            stored = self._read_state(partition)
            if stored is None or (stored[0].owner, stored[0].generation) != (self.member, owned.generation):
                self._drop(partition)
                raise FencedError(self._describe_loss(partition)) from None
            owned.etag = self._folder.store.replace(key, body, stored[1])
        owned.position = position

    def _describe_loss(self, *partitions: int) -> str:
        return (
            f"another member of group {self._group} now owns {name_partitions(partitions)} of {self._topic}: no "
            "offset of these partitions was committed, and that member reads their records again"
        )

    def _read_state(self, partition: int) -> tuple[GroupPartition, str] | None:
        return _read_partition(self._folder, self._group, self._topic, partition)

    def _member_key(self, member: str) -> str:
        return self._folder.key("groups", self._group, self._topic, "members", member)

    def _partition_key(self, partition: int) -> str:
        return self._folder.key("groups", self._group, self._topic, "partitions", str(partition))


@dataclass(frozen=True, slots=True)
class _PartitionObject:
    """JSON object of a partition."""

    generation: NonNegativeInt
    owner: str | None = None
    position: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt] | None = None


@dataclass(frozen=True, slots=True)
class _MemberObject:
    """JSON object of a member."""

    beat: NonNegativeInt


_PARTITION: Final = TypeAdapter(_PartitionObject)
_MEMBER: Final = TypeAdapter(_MemberObject)


def _read_partition(folder: OwnFolder, group: str, topic: str, partition: int) -> tuple[GroupPartition, str] | None:
    """Return a partition's state, and the etag for a conditional replace; None if there is no state yet."""
    key = folder.key("groups", group, topic, "partitions", str(partition))
    stored = folder.read_with_etag(key, GROUP_PARTITION, _PARTITION)
    if stored is None:
        return None
    found, etag = stored
    position = None if found.position is None else Position(*found.position)
    return GroupPartition(partition, found.owner, found.generation, position), etag


def list_groups(folder: OwnFolder, topic: str, partitions: int) -> dict[str, list[GroupPartition]]:
    """Return the groups that have read a topic, by name: the state of each partition that any member has taken."""
    beginning = folder.key("groups", "")
    names = (info.key.removeprefix(beginning).split("/") for info in folder.store.list(beginning))
    groups = sorted({parts[0] for parts in names if len(parts) == 4 and parts[1:3] == [topic, "partitions"]})
    states = {group: [_read_partition(folder, group, topic, at) for at in range(partitions)] for group in groups}
    return {group: [stored[0] for stored in of_group if stored is not None] for group, of_group in states.items()}


def _document(owner: str | None, generation: int, position: Position | None) -> dict[str, object]:
    return {"owner": owner, "generation": generation, "position": None if position is None else list(position)}
