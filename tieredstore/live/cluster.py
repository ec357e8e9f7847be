"""What a cluster has: topics, their ids and partitions, the offsets between which they can be read, and a group's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    admin,
)
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import BrokerError, BrokerUnavailableError, ResourceNotFoundError, TieredStoreError
from tieredstore.live.clients import LiveAdmin, LiveConsumer, await_answer, check_configuration, reading_configuration
from tieredstore.live.epochs import EpochEnd, EpochInquiry
from tieredstore.live.faults import fault, kind_of, unknown_s
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.live.topic_watch import TopicWatch
from tieredstore.model import Isolation, TopicPartition, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.per_process import PerProcess

_POLL_S: Final = 0.02
_AGAIN_S: Final = 0.1
_INTERNAL: Final = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""What Kafka itself calls internal, for patterns of topics too."""

# The library leaves the types of these open.
_admin: Final[Any] = admin
_spec: Final = _admin.OffsetSpec
_EARLIEST: Final = _spec.earliest()
_LATEST: Final = _spec.latest()

_SILENCE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})
"""Where the client says more of its connections than the call does."""

Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the broker has it now; ``partitions`` ascend."""

    topic: str
    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """Where a partition ends, as its leader tells it, and the leader's epoch; None from a broker that tells none."""

    offset: int
    leader_epoch: int | None = None


class GroupCommit(NamedTuple):
    """What a group has committed of a partition, with the leader epoch of the record before, if it is told."""

    offset: int
    metadata: str | None = None
    leader_epoch: int | None = None


class LiveCluster(Closing):
    """Answers from the brokers, each asked for anew. Thread-safe.

    ``properties`` have the names of Kafka's clients (``docs/how-to/read.md``). Picklable, with the properties; a client
    is made on first use, and again after fork or unpickling. Each answer takes ``timeout_s`` at most; the errors are
    ResourceNotFoundError, BrokerDeniedError, BrokerUnavailableError (to be tried again) and BrokerError.
    """

    def __init__(self, properties: Mapping[str, str], *, isolation: Isolation, timeout_s: float = 60.0) -> None:
        """ConfigError for properties that cannot be used; nothing is connected to yet."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, isolation)
        check_configuration(configuration)
        self._configuration = configuration
        self._servers = configuration["bootstrap.servers"]
        self._isolation: Isolation = isolation
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, configuration))
        self._login: tuple[str, str] | None = None

    def topics(self) -> tuple[str, ...]:
        """The names of all topics, sorted, without Kafka's internal ones. One request."""
        doing = f"the topics of {self._servers} cannot be listed"
        client = self._clients.get()
        try:
            listed = client.metadata(self._timeout_s, doing)
        except KafkaException as error:
            raise self._failure(client, error, doing) from error
        return tuple(sorted(name for name in listed.topics if name not in _INTERNAL))

    def topic(self, topic: str) -> LiveTopic:
        """The topic of this name; ResourceNotFoundError if there is none. One request."""
        known = self.describe([topic])
        if topic not in known:
            raise ResourceNotFoundError(f"there is no {topic} at {self._servers}")
        return known[topic]

    def existing_topic(self, topic: str) -> LiveTopic:
        """As :meth:`topic`, for one that was there a moment ago: asked for again while not all brokers know of it."""
        end = time.monotonic() + unknown_s(self._timeout_s)
        while True:
            try:
                return self.topic(topic)
            except ResourceNotFoundError:
                if time.monotonic() > end:
                    raise
                time.sleep(_AGAIN_S)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        """Those of the topics that there are, by name. One request, however many are asked for."""
        names = sorted(set(topics))
        if not names:
            return {}
        which = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics"
        doing = f"{which} of {self._servers} cannot be looked up"
        client, collection = self._clients.get(), TopicCollection(names)
        answers = self._answers(
            client,
            lambda timeout_s: _untyped(client).describe_topics(collection, request_timeout=timeout_s),
            doing,
            absent_too=True,
        )
        return {name: _live_topic(name, answers[name], doing) for name in names if answers[name] is not None}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read of each. A request for each broker that leads one."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        """Behind the last offset that can be read of each: the high watermark, or the last stable offset.

        The latter for ``read_committed``, which may be asked for in place of the cluster's own isolation. A request
        for each broker that leads one of the partitions.
        """
        return self._offsets(dict.fromkeys(partitions, _LATEST), isolation)

    def ends(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, LiveEnd]:
        """The same with the epoch of the leader that answered."""
        answers = self._list_offsets(dict.fromkeys(partitions, _LATEST), isolation)
        return {where: LiveEnd(answer.offset, _epoch(answer.leader_epoch)) for where, answer in answers.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where on the leader's log the largest epoch ends that is not above the one asked for.

        A partition is absent if the answer was not understood. A consumer of its own asks: some connections, and a
        request to each broker that leads one of the partitions.
        """
        if not epochs:
            return {}
        doing = f"leader epochs of {self._servers} cannot be looked up"
        consumer = LiveConsumer(reading_configuration(self._configuration, self._timeout_s))
        try:
            if self._login is not None:
                consumer.set_sasl_credentials(*self._login)
            return EpochInquiry(consumer, epochs, doing).ask(self._timeout_s)
        finally:
            consumer.close()

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The offset of the first record of each whose timestamp is the given one (milliseconds) or later.

        None where there is none so late, among what ``isolation`` lets be read. Requests as above.
        """
        # Times below zero have meanings of their own in the protocol.
        specs = {where: _spec.for_timestamp(max(0, moment)) for where, moment in times.items()}
        return {where: None if offset < 0 else offset for where, offset in self._offsets(specs).items()}

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """What a group has committed of each, None for nothing; transactions that commit offsets are waited for."""
        wheres = list(partitions)
        commits = self.commits(group, wheres)
        return {where: commits[where].offset if where in commits else None for where in wheres}

    def commits(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupCommit]:
        """The same with all that each commit says, of those partitions alone of which there is one."""
        wheres = list(partitions)
        if not wheres:
            return {}
        doing = f"the offsets of the group {group} at {self._servers} cannot be looked up"
        with GroupClient({**self._configuration, "group.id": group}, self._login) as client:
            places = client.committed(wheres, doing, self._timeout_s)
        return {
            (place.topic, place.partition): GroupCommit(place.offset, place.metadata, _epoch(place.leader_epoch))
            for place in places
            if place.offset >= 0
        }

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Have a group that has no members stand at these offsets, the next to be read.

        BrokerError names the first partition that is refused: then perhaps not all are committed.
        """
        if not offsets:
            return
        client = self._clients.get()
        places = [KafkaPartition(*where, offset) for where, offset in offsets.items()]
        wanted = ConsumerGroupTopicPartitions(group, places)

        def ask(timeout_s: float) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = _untyped(client).alter_consumer_group_offsets(
                [wanted], request_timeout=timeout_s
            )
            return futures

        doing = f"offsets of the group {group} cannot be committed at {self._servers}"
        for place in self._answers(client, ask, doing)[group].topic_partitions:
            if place.error is not None:
                raise fault(place.error, f"{doing}, for {place.topic}-{place.partition}")

    def _offsets(
        self, specs: Mapping[TopicPartition, Any], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        return {where: answer.offset for where, answer in self._list_offsets(specs, isolation).items()}

    def _list_offsets(
        self, specs: Mapping[TopicPartition, Any], isolation: Isolation | None
    ) -> dict[TopicPartition, Any]:
        if not specs:
            return {}
        client = self._clients.get()
        committed = (isolation or self._isolation) == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask(timeout_s: float) -> dict[TopicPartition, Future[Any]]:
            wanted = {KafkaPartition(*where): spec for where, spec in specs.items()}
            futures = _untyped(client).list_offsets(wanted, isolation_level=level, request_timeout=timeout_s)
            return {(theirs.topic, theirs.partition): future for theirs, future in futures.items()}

        watch = TopicWatch(client, self._timeout_s)
        answers = self._answers(client, ask, f"offsets of {self._servers} cannot be looked up", watch=watch)
        return {where: answers[where] for where in specs}

    def _answers(
        self,
        client: LiveAdmin,
        ask: Callable[[float], Mapping[Asked, Future[Any]]],
        doing: str,
        *,
        absent_too: bool = False,
        watch: TopicWatch | None = None,
    ) -> dict[Asked, Any]:
        """Asked again while the brokers say that it may succeed later, as that a partition gets another leader.

        What there is not is None if ``absent_too``, and an error otherwise.
        """
        begun = time.monotonic()
        end = begun + self._timeout_s
        while True:
            # The last attempt too gets a moment in which it can be answered.
            futures = ask(max(_AGAIN_S, end - time.monotonic()))
            answers: dict[Asked, Any] = {}
            try:
                for what, future in futures.items():
                    try:
                        answers[what] = self._answer(client, what, future, doing, end, watch)
                    except ResourceNotFoundError:
                        if not absent_too:
                            raise
                        answers[what] = None
            except (BrokerUnavailableError, ResourceNotFoundError) as error:
                # All are asked again, not the failed one alone: it costs no more, and the answers are of one time.
                # Offsets are asked of what was there a moment ago, of which not all brokers may know yet.
                last = end if error.retryable else begun + unknown_s(self._timeout_s)
                if time.monotonic() + _AGAIN_S > last:
                    raise
                time.sleep(_AGAIN_S)
            else:
                client.hear()
                return answers

    def _answer(
        self, client: LiveAdmin, what: object, future: Future[Any], doing: str, end: float, watch: TopicWatch | None
    ) -> Any:
        def wait() -> None:
            # A client that is denied says so by its callback, which runs only while it is polled.
            client.listen(doing)
            if watch is not None and watch.is_due:
                topic, partition = cast("TopicPartition", what)
                faults = watch.faults(topic, [partition], f"{doing}, for {_name_of(what)}")
                if faults:
                    raise self._name_absent(faults[partition], _name_of(what)) from None

        try:
            answer = await_answer(client, future, end, wait)
        except TimeoutError:
            raise client.trouble.unavailable(doing, self._timeout_s) from None
        except KafkaException as error:
            client.listen(doing)
            raise self._fault(client, error, what, doing) from error
        if getattr(answer, "offset", None) == OFFSET_INVALID:
            # What the library gives of one whose broker is dead, without an error, and would go on to ask.
            with contextlib.suppress(KafkaException):
                client.list_topics(timeout=_POLL_S)
            raise client.trouble.unavailable(doing, self._timeout_s)
        return answer

    def _fault(self, client: LiveAdmin, error: KafkaException, what: object, doing: str) -> TieredStoreError:
        """What went wrong with one of them, or with the connection, which then says more."""
        named = _name_of(what)
        of = f"{doing}, for {named}"
        if error.args[0].code() != KafkaError._NOENT or not isinstance(what, tuple):
            return self._name_absent(self._failure(client, error, of), named)
        # Why no broker could be asked librdkafka does not tell.
        topic, partition = cast("TopicPartition", what)
        why = TopicWatch(client, self._timeout_s).errors(topic, [partition]).get(partition)
        if why is None or kind_of(why) is BrokerUnavailableError:
            return BrokerUnavailableError(f"{doing}: {named} has no leader now")
        return self._name_absent(fault(why, of), named)

    def _failure(self, client: LiveAdmin, error: KafkaException, doing: str) -> TieredStoreError:
        """What went wrong with a call, or with the connection."""
        if error.args[0].code() in _SILENCE:
            return client.trouble.unavailable(doing, self._timeout_s)
        return fault(error.args[0], doing)

    def _name_absent(self, error: TieredStoreError, named: str) -> TieredStoreError:
        """What is absent has one sentence, whoever says so."""
        is_absent = isinstance(error, ResourceNotFoundError)
        return ResourceNotFoundError(f"there is no {named} at {self._servers}") if is_absent else error

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Log in by these from the next connection on."""
        self._login = username, password
        self._clients.get().set_sasl_credentials(username, password)

    def close(self) -> None:
        """Let this process's client go; it is made again when it is needed."""
        self._clients.close()

    def __repr__(self) -> str:
        return f"LiveCluster(bootstrap.servers={self._servers!r}, isolation={self._isolation!r})"


def _name_of(what: object) -> str:
    """A topic by its name, a partition as topic and number."""
    return "-".join(map(str, cast("tuple[object, ...]", what))) if isinstance(what, tuple) else f"{what}"


def _epoch(theirs: int | None) -> int | None:
    return None if theirs is None or theirs < 0 else theirs


def _untyped(client: LiveAdmin) -> Any:
    """The library leaves the types of its futures open."""
    return client


def _live_topic(name: str, described: Any, doing: str) -> LiveTopic:
    topic_id = uuid_of(described.topic_id)
    if topic_id.bytes == bytes(16):
        raise BrokerError(f"{doing}: the broker names no topic id; Kafka 2.8 or later does")
    return LiveTopic(name, topic_id, tuple(sorted(partition.id for partition in described.partitions)))


def uuid_of(theirs: Any) -> Uuid:
    """Return a topic's id, in the library two signed longs as in Java; zero where the broker tells none."""
    if theirs is None:
        return Uuid(bytes(16))
    high, low = theirs.get_most_significant_bits(), theirs.get_least_significant_bits()
    return Uuid(high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))


_FIRST_COMMITS_S: Final = 1.0
"""A call in which nothing can interrupt; those that follow take as long as all before them."""


class GroupClient(Closing):
    """Asks a group's coordinator; subscribes to nothing, and so is no member. For one thread.

    Not the administrative client: librdkafka 2.x takes the whole process down where a coordinator answers that one that
    it is not the coordinator any more (its issue 5040), as each does that has only just become one.
    """

    def __init__(self, configuration: Mapping[str, str], login: tuple[str, str] | None = None) -> None:
        """``configuration`` names the group; ``login``, a user and a password, stands for what it says of these."""
        # What transactions are about to commit is waited for, whatever may be read of topics.
        own = {"enable.auto.commit": "false", "isolation.level": "read_committed"}
        self._client = LiveConsumer({**configuration, **own})
        if login is not None:
            self._client.set_sasl_credentials(*login)

    def committed(self, partitions: Sequence[TopicPartition], doing: str, timeout_s: float) -> list[KafkaPartition]:
        """What is committed of each, asked for again while that may succeed later; a negative offset for nothing.

        Errors begin with ``doing``: BrokerDeniedError, BrokerUnavailableError (nothing came in ``timeout_s``),
        BrokerError.
        """
        begun = time.monotonic()
        end = begun + timeout_s
        while True:
            now = time.monotonic()
            wait_s = min(max(end - now, _AGAIN_S), max(_FIRST_COMMITS_S, now - begun))
            try:
                return self._ask(partitions, doing, wait_s, timeout_s)
            except BrokerUnavailableError:
                if time.monotonic() + _AGAIN_S > end:
                    raise
                time.sleep(_AGAIN_S)

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def _ask(
        self, partitions: Sequence[TopicPartition], doing: str, wait_s: float, timeout_s: float
    ) -> list[KafkaPartition]:
        trouble = self._client.trouble
        client: Any = self._client  # the library leaves types of its results open
        try:
            places: list[KafkaPartition] = client.committed(
                [KafkaPartition(*where) for where in partitions], timeout=wait_s
            )
        except KafkaException as error:
            # A client that is denied says so by its callback, which runs only while it is polled.
            self._client.poll(0)
            final = trouble.final(doing)
            if final is not None:
                raise final from error
            if error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise trouble.unavailable(doing, timeout_s) from error
            raise fault(error.args[0], doing) from error
        for place in places:
            if place.error is not None:
                raise fault(place.error, f"{doing}, for {place.topic}-{place.partition}")
        return places
