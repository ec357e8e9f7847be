"""The segments that a call covers: topics by name or glob, partitions, a topic's id."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from tieredstore.catalog.absence import absence
from tieredstore.catalog.listing import Scope
from tieredstore.catalog.names import partition_numbers, topic_ids, topic_names
from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.query.arguments import Partitions, TopicIdLike, check_count, partition_set, topic_id_of

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore


class Which(TypedDict, total=False):
    """Options of methods that process segments: which segments of topics, and how many in parallel."""

    partitions: Partitions
    topic_id: TopicIdLike
    parallel: int


def check_keywords(method: Callable[..., object], given: Mapping[str, object], accepted: type) -> None:
    """Raise ConfigError for a keyword that is neither a parameter of ``method`` nor in ``accepted``. ``accepted`` is
    the TypedDict of the method's ``**`` keywords.
    """
    known = accepted.__annotations__.keys()
    for name in given.keys() - known:
        parameters = inspect.signature(method).parameters.values()
        names = [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
        # Never suggest ``force`` for a misspelled name, because ``force`` skips safety checks.
        meant = [one for one in (*names, *known) if one != "force"]
        hint = did_you_mean(name, meant, otherwise=f"it takes {', '.join([*names, *known])}")
        raise ConfigError(f"{method.__name__}() has no argument {name!r:.60}{hint}")
    if "parallel" in given:
        check_count("parallel", given["parallel"])


def scopes_of(method: Callable[..., object], topics: Sequence[str], which: Which) -> Scopes:
    """Return the segments that a call of ``method`` covers; raise ConfigError for wrong arguments."""
    check_keywords(method, which, Which)
    return Scopes(topics, which.get("partitions"), which.get("topic_id"))


def check_names(topics: Sequence[object]) -> None:
    """Raise ConfigError for an invalid topic name."""
    for topic in topics:
        if not isinstance(topic, str):
            raise ConfigError(f"a topic is of the type {type(topic).__name__}; give a name, or a glob like 'orders-*'")


class Scopes:
    """The segments of some topics. The constructor sends no request; :meth:`of` looks up the names in the bucket."""

    def __init__(self, topics: Sequence[str], partitions: Partitions = None, topic_id: TopicIdLike = None) -> None:
        check_names(topics)
        self.topics: tuple[str, ...] = tuple(topics)
        self.partitions: tuple[int, ...] | None = partition_set(partitions)
        self.topic_id: Uuid | None = topic_id_of(topic_id)
        if not topics and (self.partitions is not None or self.topic_id is not None):
            raise ConfigError("partitions and topic_id select within a topic: name the topic too")
        if self.topic_id is not None and (len(topics) > 1 or any(map(is_glob, topics))):
            raise ConfigError("topic_id belongs to one topic: name only that topic")

    def __str__(self) -> str:
        names = ", ".join(self.topics) or "all topics"
        return names if self.partitions is None else f"{names} {list(self.partitions)}"

    @property
    def is_open(self) -> bool:
        """True if the call covers topics that it does not name."""
        return not self.topics or any(map(is_glob, self.topics))

    def matches(self, topic: str) -> bool:
        """Return True if the call covers a topic of this name, whether it exists or not."""
        return not self.topics or any(fnmatch.fnmatchcase(topic, name) for name in self.topics)

    def of(self, store: ObjectStore, prefix: str) -> Iterator[Scope]:
        """Yield the scopes of listings. Raise ResourceNotFoundError for a topic or partition that was named but does
        not exist.
        """
        if not self.topics:
            yield Scope()
            return
        for topic in self._names(store, prefix):
            there = partition_numbers(store, prefix, topic)
            ids = there if self.topic_id is None else {self.topic_id: there.get(self.topic_id, [])}
            known = {number for numbers in ids.values() for number in numbers}
            missing = [number for number in self.partitions or () if number not in known]
            if not known or missing:
                raise absence(store, prefix, {topic: missing}, topic_id=self.topic_id)
            for number in [None] if self.partitions is None else self.partitions:
                yield Scope(topic, self.topic_id, number)

    def of_one_life(self, store: ObjectStore, prefix: str) -> list[Scope]:
        """Return the scopes, each with its topic's id. Raise ConfigError for a re-created topic: it has several ids."""
        scopes: list[Scope] = []
        for scope in self.of(store, prefix):
            ids = topic_ids(store, prefix, scope.topic or "") if scope.topic_id is None else []
            if len(ids) > 1:
                shown = ", ".join(map(str, ids))
                raise ConfigError(
                    f"the topic {scope.topic} was created again: choose one of {shown} by topic_id (--topic-id)"
                )
            scopes.append(Scope(scope.topic, ids[0] if ids else scope.topic_id, scope.partition))
        return scopes

    def _names(self, store: ObjectStore, prefix: str) -> list[str]:
        if not any(map(is_glob, self.topics)):
            return list(dict.fromkeys(self.topics))
        known = topic_names(store, prefix)
        names: dict[str, None] = {}
        for topic in self.topics:
            matching = [name for name in known if fnmatch.fnmatchcase(name, topic)] if is_glob(topic) else [topic]
            if not matching:
                raise absence(store, prefix, {topic: []})
            names |= dict.fromkeys(matching)
        return list(names)


def is_glob(topic: str) -> bool:
    """Return True if ``topic`` is a glob, because it contains characters that names of topics cannot have."""
    return any(character in topic for character in "*?[")
