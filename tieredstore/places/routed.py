"""A store that shows several places as one store. Each topic's objects are at the topic's place."""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from tieredstore.backends.base import (
    AbandonedWrite,
    Body,
    BucketLifecycle,
    BucketVersions,
    Buffer,
    DelegatingStore,
    ObjectInfo,
    ObjectStore,
    Prepared,
    admin_of,
)
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.format.keys import partition_of
from tieredstore.places.endpoints import Endpoint, EndpointProvider
from tieredstore.places.entropy import begin_all
from tieredstore.places.mapped import is_behind, listing_order
from tieredstore.places.record import STATE

_logger: Final = logging.getLogger(__name__)

_OF_TOPICS: Final = (f"{STATE}watermarks/", f"{STATE}quarantine/")

_MOST_TOPICS: Final = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """An endpoint with its opened store. The keys of its segments begin with ``prefix``.

    ``is_own_store`` is True if this place uses the same store as the first place, so that only the first place closes
    it.
    """

    endpoint: Endpoint
    store: ObjectStore
    prefix: str
    is_own_store: bool = False


def places_of(store: ObjectStore, prefix: str, topic: str | None = None) -> tuple[Place, ...]:
    """Return the places of ``store``, beginning with the settings' own place; with ``topic``, only the topic's place.
    If the store is not routed, it is the only place."""
    if not isinstance(store, RoutedStore):
        return (Place(Endpoint(), store, prefix),)
    return store.places if topic is None else (store.place_of_topic(topic),)


class RoutedStore(DelegatingStore):
    """A store that sends each request for a topic's object to the topic's place. Callers use keys with the prefix of
    the settings' own place.

    A topic's objects are its segments, its watermarks, and its records in quarantine. Requests for any other object go
    to the settings' own place.
    """

    def __init__(self, places: Sequence[Place], provider: EndpointProvider) -> None:
        super().__init__(places[0].store)
        self.places: tuple[Place, ...] = tuple(places)
        self._provider = provider
        self._by_endpoint = {place.endpoint: place for place in self.places}
        self.place_of_topic: Callable[[str], Place] = lru_cache(_MOST_TOPICS)(self._ask_place)
        self._told: set[str] = set()

    def __reduce__(self) -> tuple[Callable[..., RoutedStore], tuple[tuple[Place, ...], EndpointProvider]]:
        return RoutedStore, (self.places, self._provider)

    def __repr__(self) -> str:
        return f"RoutedStore({', '.join(repr(place.store) for place in self.places)})"

    @property
    def identity(self) -> str:
        """The identities of all places, beginning with the settings' own place."""
        identities = [self.places[0].store.identity]
        identities += [f"{place.store.identity}/{place.prefix}" for place in self.places[1:]]
        return ", ".join(identities)

    @property
    def conditional_writes(self) -> bool:
        """True if the stores of all places have conditional writes."""
        return all(place.store.conditional_writes for place in self.places)

    def target(self, key: str, *, writes: bool = False) -> tuple[ObjectStore, str]:  # noqa: ARG002
        """Return the store in which the key is placed, and the key within that store."""
        place = self._place(key)
        return place.store, self._within(place, key)

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Write at the key's place."""
        store, there = self.target(key)
        store.put_once(there, body, mark)

    @property
    def small_batch(self) -> int:
        """The smallest batch size of all places."""
        return min(place.store.small_batch for place in self.places)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Read the objects one after the other."""
        return ObjectStore.get_small_batch(self, keys, most)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Merge the listings of all places that may have keys with ``prefix``."""
        own_prefix = self.places[0].prefix
        if not prefix.startswith(own_prefix):
            if not own_prefix.startswith(prefix):
                return self.places[0].store.list(prefix, start_after)
            prefix = own_prefix
        places = self.places if self._where(prefix) is None else (self._place(prefix),)
        listings = [self._see_listing(place, prefix, start_after) for place in places]
        if len(listings) == 1:
            return listings[0]
        return heapq.merge(*begin_all(listings), key=listing_order)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete each key at its place. If a deletion fails, still delete the other keys."""
        by_place: defaultdict[int, list[str]] = defaultdict(list)
        for key in keys:
            place = self._place(key)
            by_place[self.places.index(place)].append(self._within(place, key))
        failures: list[TieredStoreError] = []
        for number, within in by_place.items():
            try:
                self.places[number].store.delete(within)
            except TieredStoreError as error:
                failures.append(error)
        if failures:  # raise a retryable error only if a retry can delete everything
            raise next((error for error in failures if not error.retryable), failures[0])

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Write an object under ``staging_prefix``, even if the key's place has its own way of staging."""
        return ObjectStore.prepare(self, key, body, staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Copy the staged object to its final key, then delete the staging copy."""
        ObjectStore.publish(self, prepared)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Discard the write at the place of its key."""
        if isinstance(write, Prepared):
            return ObjectStore.discard(self, write)
        store, there = self.target(write.key)
        return store.discard(replace(write, key=there))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Yield the abandoned writes of all places; None if a place cannot list them."""
        of_places = [(place, admin_of(place.store).abandoned_writes(place.prefix)) for place in self.places]
        known = [(place, writes) for place, writes in of_places if writes is not None]
        return self._see_writes(known, prefix) if len(known) == len(of_places) else None

    def _see_writes(
        self, of_places: Sequence[tuple[Place, Iterator[AbandonedWrite]]], prefix: str
    ) -> Iterator[AbandonedWrite]:
        for place, writes in of_places:
            for write in writes:
                key = self._without(place, write.key)
                if key.startswith(prefix) and self._place(key) is place:
                    yield replace(write, key=key)

    def now_ms(self) -> int | None:
        """Return the time of the slowest clock of all places; None if a place has no clock.

        By a faster clock, an object at the place of the slowest clock would seem older than it is."""
        times = [admin_of(place.store).now_ms() for place in self.places]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    def kept_after_delete(self) -> Sequence[str]:
        """Return sentences about how long each place retains deleted objects."""
        return [sentence for place in self.places for sentence in admin_of(place.store).kept_after_delete()]

    def rules_on(self, prefix: str) -> Sequence[str] | None:
        """Return the lifecycle rules of all places; None if a place cannot list its rules."""
        rules: list[str] = []
        for place in self.places:
            of_place = admin_of(place.store).rules_on(self._within(place, prefix))
            if of_place is None:
                return None
            rules += of_place
        return rules

    def lifecycle(self) -> BucketLifecycle | str:
        """Return a sentence instead of rules, because each place has its own lifecycle rules."""
        return (
            f"endpoint.rules name {len(self.places)} places, each with its own lifecycle rules: choose one by --store"
        )

    def versions(self) -> BucketVersions | str:
        """Return a sentence instead of versions, because each place keeps its own."""
        return f"endpoint.rules name {len(self.places)} places, each with its own versions: choose one by --store"

    def caller(self) -> str:
        """Return the identities under which the places send requests, without places that do not know theirs."""
        return "; ".join(dict.fromkeys(filter(None, (admin_of(place.store).caller() for place in self.places))))

    def close(self) -> None:
        """Close all stores."""
        for place in self.places:
            if not place.is_own_store:
                place.store.close()

    def _where(self, key: str) -> str | None:
        """Return the topic of a key; None if the key belongs to no topic."""
        own_prefix = self.places[0].prefix
        if not key.startswith(own_prefix):
            return None
        path = key[len(own_prefix) :]
        if path.startswith(_OF_TOPICS):
            path = path[len(STATE) :].partition("/")[2]
        topic_folder, slash, rest = path.partition("/")
        # A listing's prefix may end after the topic's folder, so add any partition for the parser. Only the topic is
        # used.
        where = partition_of(f"{topic_folder}/0/{rest}") if slash else None
        return None if where is None else where.topic

    def _place(self, key: str) -> Place:
        topic = self._where(key)
        return self.places[0] if topic is None else self.place_of_topic(topic)

    def _ask_place(self, topic: str) -> Place:
        endpoint = self._provider.endpoint(topic)
        place = self._by_endpoint.get(endpoint)
        if place is None:
            raise ConfigError(f"the endpoint of topic {topic!r} is not one that its provider lists: {endpoint.url}")
        return place

    def _within(self, place: Place, key: str) -> str:
        own_prefix = self.places[0].prefix
        return place.prefix + key[len(own_prefix) :] if key.startswith(own_prefix) else key

    def _without(self, place: Place, key: str) -> str:
        return self.places[0].prefix + key[len(place.prefix) :]

    def _see_listing(self, place: Place, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        own_prefix = self.places[0].prefix
        after = None
        if start_after is not None and start_after.startswith(own_prefix):
            after = self._within(place, start_after)
        for info in place.store.list(self._within(place, prefix), after):
            key = self._without(place, info.key)
            if start_after is not None and not is_behind(key, start_after):
                continue
            if self._place(key) is place:
                yield replace(info, key=key)
            else:
                self._tell(key, place)

    def _tell(self, key: str, place: Place) -> None:
        """Warn once about a topic that has objects at ``place`` although the rules name another place for it."""
        topic = self._where(key)
        if topic is not None and topic not in self._told:
            self._told.add(topic)
            _logger.warning(
                "%s has segments of topic %s, which the endpoint rules place elsewhere: they are not read",
                place.store.identity, topic,
            )  # fmt: skip
