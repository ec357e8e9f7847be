"""A governor by leases in the store: conditional replaces decide, and no clock is compared with another machine's.

::

    <own folder>/governor/brokers/<name>  {"beat", "session", "ip", "port", "rack", "capacity", "reads"}
    <own folder>/governor/lease           {"beat", "owner", "session", "generation"}
    <own folder>/governor/assignments     {"generation", "brokers": {name: [rack, ip, port, reads]}, "topics": {…}}

Every broker moves its own beat, and looks at those of the others: one that stood still for ``PATIENCE_S`` of the
looker's own clock is gone. Who holds the lease governs. Whoever takes the lease raises its generation, and marks the
assignments with it before it changes them; an assignment is replaced only by the etag with which it was read, and only
by who has its generation: what a governor writes that was deposed meanwhile fails.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tieredstore.errors import CorruptData, Fenced, ObjectNotFound, PreconditionFailed
from tieredstore.pubsub.format.packets import MOST_PORT, BrokerAddress
from tieredstore.pubsub.governor.assigning import AssignmentStrategy, BrokerSeat, TopicLoad
from tieredstore.pubsub.governor.directory import Governor
from tieredstore.pubsub.governor.zookeeper_nodes import packet_text
from tieredstore.pubsub.queue.own_objects import ANY_OBJECT, OwnFolder, json_body, number_in

PATIENCE_S: Final = 8.0
"""Seconds after which a beat that stands still is that of a dead broker. With a tick to see it, and one for the others
to read what follows from it, its topics are elsewhere within 15 s."""

_SEATS_FOR_S: Final = 30.0
_REREADS: Final = 3
"""So long what a broker says of itself holds, and so many are asked again in one tick: a beat is seen by the listing
alone, and a look at many brokers, one after the other, would take longer than they may be silent."""

_MOST_BYTES: Final = 16 << 20
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _View:
    """The assignments as they were last read."""

    generation: int
    brokers: dict[str, tuple[BrokerAddress, bool]]
    topics: dict[str, dict[str, int]]


_NOTHING: Final = _View(0, {}, {})


@dataclass(slots=True)
class _Watched:
    """Somebody's beat: what was seen last, and since when it is that."""

    token: str
    since_s: float
    read_s: float = 0.0
    """When a broker's object was read last."""


class StoreGovernor(Governor):
    """One broker's part in it."""

    def __init__(
        self,
        folder: OwnFolder,
        seat: Callable[[], BrokerSeat],
        topics: Callable[[], Sequence[TopicLoad]],
        strategy: AssignmentStrategy,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``seat`` and ``topics`` are asked at each tick."""
        self.session = uuid.uuid4().hex
        self.generation = None  # that of the lease
        self._folder = folder
        self._seat = seat
        self._topics = topics
        self._strategy = strategy
        self._monotonic = monotonic
        self._patience_s = patience_s
        self._wall_ms = wall_ms
        self._view = _NOTHING
        self._view_etag: str | None = None
        self._own_etag: str | None = None
        self._beat = 0
        self._lease_etag: str | None = None
        self._lease_beat = 0
        self._lease: _Watched | None = None
        self._others: dict[str, _Watched] = {}
        self._seats: dict[str, BrokerSeat] = {}

    # --- what the broker is told; on its loop ---

    def serves(self, topic: str) -> bool:
        """Whether it was assigned here."""
        return self._seat().name in self._view.topics.get(topic, {})

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Who has it."""
        view = self._view
        return tuple(view.brokers[name][0] for name in sorted(view.topics.get(topic, {})) if name in view.brokers)

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  each of them reads from one store
        """Those that give out objects: of every topic, since none has a disk."""
        return tuple(address for address, reads in self._view.brokers.values() if reads)

    # --- on a thread of its own ---

    def tick(self) -> None:
        """As the contract says: some six requests of the store."""
        seat = self._seat()
        self._move_own_beat(seat)
        living = self._living(seat)
        if self._holds_lease(seat):
            try:
                self._govern(living)
            except (Fenced, PreconditionFailed):
                _logger.info("%s governs no more: another has written since", seat.name)
                self._forget_lease()
        self._read_assignments()

    def leave(self) -> bool:
        """Give up the seat and the lease: topics are assigned elsewhere at the next tick of whoever governs."""
        seat = self._seat()
        if self.generation is not None and self._lease_etag is not None:
            document = {"beat": self._lease_beat, "owner": None, "session": None, "generation": self.generation}
            try:
                self._folder.store.replace(self._key("lease"), json_body(document), self._lease_etag)
            except (PreconditionFailed, ObjectNotFound):
                _logger.debug("the lease is another's already")
            self._forget_lease()
        if self._own_etag is not None:
            self._folder.store.delete([self._broker_key(seat.name)])
        now_s = self._monotonic()
        return any(now_s - self._others[name].since_s < self._patience_s for name in self._seats.keys() & self._others)

    def follow(self) -> None:
        """As the contract says: a HEAD, and a GET when somebody has assigned."""
        self._read_assignments()

    def _move_own_beat(self, seat: BrokerSeat) -> None:
        key = self._broker_key(seat.name)
        self._beat += 1
        address = seat.address
        body = json_body({
            "beat": self._beat, "session": self.session, "ip": address.ip, "port": address.port,
            "rack": address.locality, "capacity": seat.capacity_mb, "reads": seat.serves_reads,
        })  # fmt: skip
        try:
            if self._own_etag is not None:
                self._own_etag = self._folder.store.replace(key, body, self._own_etag)
                return
        except PreconditionFailed:
            _logger.info("%s: its own beat was moved or removed by another, or an answer was lost", seat.name)
        stored = self._etag_of(key)
        if stored is None:
            self._folder.store.put(key, body, if_absent=True)
            self._own_etag = self._folder.store.head(key).etag
        else:
            self._own_etag = self._folder.store.replace(key, body, stored)

    def _living(self, own: BrokerSeat) -> list[BrokerSeat]:
        """The brokers whose beat has moved lately, this one among them."""
        beginning = self._key("brokers", "")
        now_s = self._monotonic()
        living = {own.name: own}
        there: set[str] = set()
        rereads = _REREADS
        for info in self._folder.store.list(beginning):
            name = info.key.removeprefix(beginning)
            if name == own.name:
                continue
            there.add(name)
            known = self._others.get(name)
            token, read_s = info.etag, now_s
            try:
                is_old = known is not None and now_s - known.read_s >= _SEATS_FOR_S and rereads > 0
                if token is None or known is None or (token != known.token and (is_old or name not in self._seats)):
                    rereads -= is_old
                    beat = self._read_seat(name, info.key)
                    token = token or beat
                else:
                    read_s = known.read_s
            except ObjectNotFound:
                continue
            if known is None or known.token != token:
                # One that is met for the first time counts as living: it may be, and time will tell.
                self._others[name] = _Watched(token, now_s, read_s)
            if name not in self._seats:
                continue
            if now_s - self._others[name].since_s < self._patience_s:
                living[name] = self._seats[name]
            elif now_s - self._others[name].since_s > 20 * self._patience_s:
                self._folder.store.delete([info.key])
        for name in self._others.keys() - there:
            del self._others[name]
            self._seats.pop(name, None)
        return [living[name] for name in sorted(living)]

    def _read_seat(self, name: str, key: str) -> str:
        """Note what a broker says of itself; its beat, for a store that has no etags."""
        try:
            document = self._folder.read(key, ANY_OBJECT)
            self._seats[name] = _parse_seat(document, name, key)
        except CorruptData as error:
            # The others are governed all the same; a broker that lives writes its own object anew.
            _logger.warning("an object among those of brokers is passed over: %s", error)
            self._seats.pop(name, None)
            return ""
        return f"{document.get('session')}/{document.get('beat')}"

    # --- the lease ---

    def _holds_lease(self, own: BrokerSeat) -> bool:
        key = self._key("lease")
        if self.generation is not None and self._lease_etag is not None:
            self._lease_beat += 1
            try:
                self._lease_etag = self._folder.store.replace(
                    key, self._lease_body(own, self.generation), self._lease_etag
                )
            except PreconditionFailed:
                self._forget_lease()
            else:
                return True
        stored = self._folder.read_with_etag(key, ANY_OBJECT)
        try:
            if stored is None:
                self._folder.store.put(key, self._lease_body(own, 1), if_absent=True)
                return False  # held from the next tick on, when its etag is read
            return self._take_lease(own, *stored)
        except PreconditionFailed:
            return False  # somebody was quicker

    def _take_lease(self, own: BrokerSeat, document: dict[str, Any], etag: str) -> bool:
        key = self._key("lease")
        now_s = self._monotonic()
        generation = number_in(document, "generation", key)
        session = document.get("session")
        if session == self.session:  # its own, put or moved by a write whose answer was lost
            self._lease_etag, self.generation = etag, generation
            self._lease_beat = number_in(document, "beat", key)
            return True
        if self._lease is None or self._lease.token != etag:
            self._lease = _Watched(etag, now_s)
        if session is not None and now_s - self._lease.since_s < self._patience_s:
            return False
        self._lease_beat = 0
        self._lease_etag = self._folder.store.replace(key, self._lease_body(own, generation + 1), etag)
        self.generation = generation + 1
        _logger.info("%s governs, generation %d", own.name, self.generation)
        return True

    def _lease_body(self, own: BrokerSeat, generation: int) -> bytes:
        return json_body(
            {"beat": self._lease_beat, "owner": own.name, "session": self.session, "generation": generation}
        )

    def _forget_lease(self) -> None:
        self.generation = self._lease_etag = self._lease = None

    # --- assignments ---

    def _govern(self, living: Sequence[BrokerSeat]) -> None:
        """Assign, and write it if it is another assignment than before. Fenced if another governs by now."""
        assert self.generation is not None
        key = self._key("assignments")
        etag = self._etag_of(key)
        before = _NOTHING if etag is None else self._read_view(key)
        if before.generation > self.generation:
            raise Fenced(f"generation {before.generation} governs")
        topics = self._strategy.assign(self._topics(), living, before.topics, self._wall_ms())
        brokers = {seat.name: (seat.address, seat.serves_reads) for seat in living}
        after = _View(self.generation, brokers, topics)
        if after == before:
            return
        body = json_body(_document(after))
        if etag is None:
            self._folder.store.put(key, body, if_absent=True)
        else:
            self._folder.store.replace(key, body, etag)
        _logger.info("%d topics are at %d brokers", len(topics), len(brokers))

    def _read_assignments(self) -> None:
        key = self._key("assignments")
        etag = self._etag_of(key)
        if etag is not None and etag != self._view_etag:
            view = self._read_view(key)
            if view.generation >= self._view.generation:
                self._view, self._view_etag = view, etag

    def _etag_of(self, key: str) -> str | None:
        try:
            return self._folder.store.head(key).etag
        except ObjectNotFound:
            return None

    def _read_view(self, key: str) -> _View:
        raw = self._folder.store.get_small(key, _MOST_BYTES)
        try:
            document = json.loads(raw or b"")
            return _View(
                number_in(document, "generation", key),
                {
                    str(name): (_address(rack, ip, port, key), bool(reads))
                    for name, (rack, ip, port, reads) in document["brokers"].items()
                },
                {
                    str(topic): {str(name): int(ms) for name, ms in names.items()}
                    for topic, names in document["topics"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptData(f"{key} is not what a governor wrote: {error!r:.200}") from error

    def _key(self, *parts: str) -> str:
        return self._folder.key("governor", *parts)

    def _broker_key(self, name: str) -> str:
        return self._key("brokers", name)


def broker_name(address: BrokerAddress) -> str:
    """What a broker is called, for as long as it has this address: one that is started anew gets its topics back."""
    return f"{address.ip.replace(':', '-').replace('/', '-')}_{address.port}"


def _document(view: _View) -> dict[str, Any]:
    return {
        "generation": view.generation,
        "brokers": {
            name: [address.locality, address.ip, address.port, reads]
            for name, (address, reads) in sorted(view.brokers.items())
        },
        "topics": view.topics,
    }


def _parse_seat(document: dict[str, Any], name: str, key: str) -> BrokerSeat:
    address = _address(document.get("rack"), document.get("ip"), number_in(document, "port", key), key)
    return BrokerSeat(name, address, number_in(document, "capacity", key), document.get("reads") is True)


def _address(rack: object, ip: object, port: object, key: str) -> BrokerAddress:
    """One that clients can be told of in a packet; CorruptData for what none can hold."""
    if not isinstance(port, int) or not 0 <= port <= MOST_PORT or not ip:
        raise CorruptData(f"{key} is not what was written: no client can be told of port {port!r:.60} of {ip!r:.60}")
    return BrokerAddress(packet_text(rack, key), packet_text(ip, key), port)
