"""A governor, which assigns topics to brokers. A lease in the store elects the governing broker. Conditional replaces
protect the lease; clocks of different machines are never compared.

::

    <own folder>/governor/brokers/<name>  {"beat", "session", "ip", "port", "rack", "capacity", "reads"}
    <own folder>/governor/lease           {"beat", "owner", "session", "generation"}
    <own folder>/governor/assignments     {"generation", "brokers": {name: [rack, ip, port, reads]}, "topics": {…}}

Every broker increments its own heartbeat, and watches the heartbeats of the other brokers. A broker is gone if its
heartbeat has not changed for ``PATIENCE_S`` on the watcher's clock.

The holder of the lease governs. Each new holder raises the lease's generation. A governor writes its generation into
the assignments. The governor replaces assignments only if their generation is not later than its own, and if their etag
has not changed. A delayed write of an earlier governor therefore fails.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, Field, NonNegativeInt, TypeAdapter

from tieredstore.errors import CorruptDataError, FencedError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.limits import MAX_INT16
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import AssignmentStrategy, BrokerSeat, TopicLoad
from tieredstore.pubsub.governor.directory import Governor
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.versions import ASSIGNMENTS, BROKER_SEAT, LEASE

PATIENCE_S: Final = 8.0
"""Seconds without a new heartbeat after which a broker counts as dead. One more tick passes before the death is
noticed, and one more before the new assignments are read. Other brokers therefore have the topics within 15 s.
"""

_SEATS_FOR_S: Final = 30.0
_REREADS: Final = 3
"""Limits on reading the objects of known brokers again. Each object is read at most every ``_SEATS_FOR_S`` seconds,
because the etags in a listing already show new heartbeats. A tick reads at most ``_REREADS`` objects, because reading
many objects in a row would take longer than ``PATIENCE_S``.
"""

_MOST_BYTES: Final = 16 << 20
_logger: Final = logging.getLogger(__name__)


def _check_text(text: str) -> str:
    if len(text.encode()) > MAX_INT16:
        raise ValueError("the text is too long for a packet")
    return text


_Text = Annotated[str, AfterValidator(_check_text)]
_Host = Annotated[_Text, Field(min_length=1)]
_Port = Annotated[int, Field(ge=0, le=MAX_INT16)]


@dataclass(frozen=True, slots=True)
class _View:
    """The assignments that were read last."""

    generation: NonNegativeInt
    brokers: dict[str, tuple[_Text, _Host, _Port, bool]]
    topics: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class _SeatObject:
    """JSON object of a broker."""

    beat: NonNegativeInt
    session: str
    ip: _Host
    port: _Port
    rack: _Text
    capacity: NonNegativeInt
    reads: bool


@dataclass(frozen=True, slots=True)
class _LeaseObject:
    """JSON object of the lease. A lease without a session is free."""

    beat: NonNegativeInt
    owner: str | None
    session: str | None
    generation: NonNegativeInt


_NOTHING: Final = _View(0, {}, {})
_VIEW: Final = TypeAdapter(_View)
_SEAT: Final = TypeAdapter(_SeatObject)
_LEASE: Final = TypeAdapter(_LeaseObject)


@dataclass(slots=True)
class _Watched:
    """The last heartbeat that this broker has read from another broker, and the time of its last change."""

    token: str
    since_s: float
    read_s: float = 0.0
    """When the broker's object was last read."""


class StoreGovernor(Governor):
    """One broker's part in the election. If the broker is elected, it governs. The clocks and timeouts are parameters
    for tests.
    """

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
        """Each tick calls ``seat`` and ``topics``."""
        self.session: str = uuid.uuid4().hex
        self.generation = None  # the lease's generation
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

    # --- answers to the broker, on its loop ---

    def serves(self, topic: str) -> bool:
        """Return True if the topic is assigned to this broker."""
        return self._seat().name in self._view.topics.get(topic, {})

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Return the topic's brokers."""
        view = self._view
        names = sorted(view.topics.get(topic, {}))
        return tuple(BrokerAddress(*view.brokers[name][:3]) for name in names if name in view.brokers)

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  all read from one store
        """Return all brokers that serve reads. Each of them can read any topic from the store."""
        return tuple(BrokerAddress(rack, ip, port) for rack, ip, port, reads in self._view.brokers.values() if reads)

    # --- on a separate thread ---

    def tick(self) -> None:
        """Send a heartbeat, find the living brokers, govern if elected, and read the assignments. A tick takes about
        six requests to the store.
        """
        seat = self._seat()
        self._move_own_beat(seat)
        living = self._find_living(seat)
        if self._holds_lease(seat):
            try:
                self._govern(living)
            except (FencedError, PreconditionFailedError):
                _logger.info("%s no longer governs: another governor has written the assignments", seat.name)
                self._forget_lease()
        self.follow()

    def leave(self) -> bool:
        """Delete this broker's object and free the lease. The next tick of a governor then assigns this broker's topics
        to other brokers.
        """
        seat = self._seat()
        if self.generation is not None and self._lease_etag is not None:
            free = _LeaseObject(self._lease_beat, None, None, self.generation)
            try:
                self._folder.store.replace(self._key("lease"), LEASE.to_bytes(asdict(free)), self._lease_etag)
            except (PreconditionFailedError, ObjectNotFoundError):
                _logger.debug("another broker already has the lease")
            self._forget_lease()
        if self._own_etag is not None:
            self._folder.store.delete([self._key("brokers", seat.name)])
        now_s = self._monotonic()
        return any(now_s - self._others[name].since_s < self._patience_s for name in self._seats.keys() & self._others)

    def follow(self) -> None:
        """Read the assignments: send a HEAD, and a GET only if the etag has changed."""
        key = self._key("assignments")
        etag = self._etag_of(key)
        if etag is not None and etag != self._view_etag:
            view = self._folder.read(key, ASSIGNMENTS, _VIEW, _MOST_BYTES)
            if view.generation >= self._view.generation:
                self._view, self._view_etag = view, etag

    def _move_own_beat(self, seat: BrokerSeat) -> None:
        key = self._key("brokers", seat.name)
        self._beat += 1
        address = seat.address
        own = _SeatObject(
            self._beat, self.session, address.ip, address.port, address.locality, seat.capacity_mb, seat.serves_reads
        )
        body = BROKER_SEAT.to_bytes(asdict(own))
        try:
            if self._own_etag is not None:
                self._own_etag = self._folder.store.replace(key, body, self._own_etag)
                return
        except PreconditionFailedError:
            _logger.info("%s: another broker changed or removed its heartbeat, or an answer was lost", seat.name)
        stored = self._etag_of(key)
        if stored is None:
            self._folder.store.put(key, body, if_absent=True)
            self._own_etag = self._folder.store.head(key).etag
        else:
            self._own_etag = self._folder.store.replace(key, body, stored)

    def _find_living(self, own: BrokerSeat) -> list[BrokerSeat]:
        """Return the brokers whose heartbeat has changed recently, including this broker."""
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
            except ObjectNotFoundError:
                continue
            if known is None or known.token != token:
                # A new heartbeat: count the broker as alive for another ``PATIENCE_S`` seconds.
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
        """Read a broker's object. Return its session and heartbeat as text. If the store has no etags, this text shows
        whether the object has changed."""
        try:
            stored = self._folder.read(key, BROKER_SEAT, _SEAT)
        except CorruptDataError as error:
            # A living broker soon replaces its damaged object, so skip this broker until then.
            _logger.warning("skipping a broker's object: %s", error)
            self._seats.pop(name, None)
            return ""
        address = BrokerAddress(stored.rack, stored.ip, stored.port)
        self._seats[name] = BrokerSeat(name, address, stored.capacity, stored.reads)
        return f"{stored.session}/{stored.beat}"

    # --- the lease ---

    def _holds_lease(self, own: BrokerSeat) -> bool:
        key = self._key("lease")
        if self.generation is not None and self._lease_etag is not None:
            self._lease_beat += 1
            try:
                self._lease_etag = self._folder.store.replace(
                    key, self._lease_body(own, self.generation), self._lease_etag
                )
            except PreconditionFailedError:
                self._forget_lease()
            else:
                return True
        stored = self._folder.read_with_etag(key, LEASE, _LEASE)
        try:
            if stored is None:
                self._folder.store.put(key, self._lease_body(own, 1), if_absent=True)
                return False  # this broker holds the lease once the next tick has read the new etag
            return self._take_lease(own, *stored)
        except PreconditionFailedError:
            return False  # another broker was faster

    def _take_lease(self, own: BrokerSeat, stored: _LeaseObject, etag: str) -> bool:
        key = self._key("lease")
        now_s = self._monotonic()
        # If the lease is in this broker's session, an earlier write has succeeded, but its answer was lost. Raise the
        # generation of a lease that was lost and created again, because the assignments have a later one.
        least = self._view.generation
        if stored.session == self.session and stored.generation >= least:
            self._lease_etag, self.generation, self._lease_beat = etag, stored.generation, stored.beat
            return True
        if self._lease is None or self._lease.token != etag:
            self._lease = _Watched(etag, now_s)
        if stored.session not in (None, self.session) and now_s - self._lease.since_s < self._patience_s:
            return False
        self._lease_beat = 0
        generation = max(stored.generation, least) + 1
        self._lease_etag = self._folder.store.replace(key, self._lease_body(own, generation), etag)
        self.generation = generation
        _logger.info("%s governs in generation %d", own.name, self.generation)
        return True

    def _lease_body(self, own: BrokerSeat, generation: int) -> bytes:
        return LEASE.to_bytes(asdict(_LeaseObject(self._lease_beat, own.name, self.session, generation)))

    def _forget_lease(self) -> None:
        self.generation = self._lease_etag = self._lease = None

    # --- assignments ---

    def _govern(self, living: Sequence[BrokerSeat]) -> None:
        """Assign topics, and write the assignments if they changed. Raise FencedError if a later generation governs."""
        assert self.generation is not None
        key = self._key("assignments")
        before, etag = self._folder.read_with_etag(key, ASSIGNMENTS, _VIEW, _MOST_BYTES) or (_NOTHING, None)
        if before.generation > self.generation:
            raise FencedError(f"another broker governs now, in generation {before.generation}")
        topics = self._strategy.assign(self._topics(), living, before.topics, self._wall_ms())
        brokers = {
            seat.name: (seat.address.locality, seat.address.ip, seat.address.port, seat.serves_reads)
            for seat in sorted(living, key=lambda seat: seat.name)
        }
        after = _View(self.generation, brokers, topics)
        if after == before:
            return
        self._folder.write(key, ASSIGNMENTS.to_bytes(asdict(after)), etag)
        _logger.info("assigned %d topics to %d brokers", len(topics), len(brokers))

    def _etag_of(self, key: str) -> str | None:
        try:
            return self._folder.store.head(key).etag
        except ObjectNotFoundError:
            return None

    def _key(self, *parts: str) -> str:
        return self._folder.key("governor", *parts)


def broker_name(address: BrokerAddress) -> str:
    """Return a broker's name, made of its address, so that a restarted broker has the same name, and gets its topics
    back."""
    return f"{address.ip.replace(':', '-').replace('/', '-')}_{address.port}"
