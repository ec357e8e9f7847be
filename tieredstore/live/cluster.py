"""Metadata of a cluster: topics with ids and partitions, their readable offsets, and the commits of groups."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

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

from tieredstore.errors import (
    BrokerDeniedError,
    BrokerError,
    BrokerUnavailableError,
    ResourceNotFoundError,
    TieredStoreError,
)
from tieredstore.live.clients import LiveAdmin, LiveConsumer, await_answer, check_configuration, reading_configuration
from tieredstore.live.epochs import EpochEnd, EpochInquiry
from tieredstore.live.faults import fault, kind_of, translate_errors, unknown_s
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.model import Isolation, TopicPartition, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.forks import PerProcess

if TYPE_CHECKING:
    from confluent_kafka import Uuid as KafkaUuid
    from confluent_kafka.admin import ConfigEntry, ListOffsetsResultInfo, OffsetSpec, ResourceType, TopicDescription

_AGAIN_S: Final = 0.1
_INTERNAL: Final = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""Topics that Kafka treats as internal: patterns of topic names do not match them."""

_EARLIEST: Final = admin.OffsetSpec.earliest()
_LATEST: Final = admin.OffsetSpec.latest()

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the broker reports it now. ``partitions`` are sorted; ``leaderless`` have no leader now."""

    topic: str
    topic_id: Uuid
    partitions: tuple[int, ...]
    leaderless: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """The end of a partition, and the leader's epoch (None if the broker does not report it)."""

    offset: int
    leader_epoch: int | None = None


class GroupCommit(NamedTuple):
    """A group's commit in a partition. ``leader_epoch`` is the epoch of the record before the offset, if known."""

    offset: int
    metadata: str | None = None
    leader_epoch: int | None = None


class LiveCluster(Closing):
    """Metadata of a cluster; each call sends requests to its brokers. Thread-safe.

    ``properties`` have the names of Kafka's clients (``docs/how-to/read.md``). A pickled object includes the
    properties. The Kafka client is created at the first use, and again after a fork or unpickling. Each call takes at
    most ``timeout_s``, and raises ResourceNotFoundError, BrokerDeniedError, BrokerUnavailableError (retryable) or
    BrokerError.
    """

    def __init__(self, properties: Mapping[str, str], *, isolation: Isolation, timeout_s: float = 60.0) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, isolation)
        check_configuration(configuration)
        self._configuration = configuration
        self._servers = configuration["bootstrap.servers"]
        self._isolation: Isolation = isolation
        self._timeout_s = timeout_s
        self._clients = PerProcess(partial(LiveAdmin, configuration))
        self._login: tuple[str, str] | None = None

    def within(self, timeout_s: float) -> Self:
        """Return this cluster with another timeout. Both share a client, which only the original closes."""
        cluster = copy.copy(self)
        cluster._timeout_s = timeout_s
        return cluster

    def topics(self) -> tuple[str, ...]:
        """Return the sorted names of all topics except Kafka's internal topics. This takes one request."""
        listed = self._client.metadata(self._timeout_s, f"the topics of {self._servers} cannot be listed")
        return tuple(sorted(name for name in listed.topics if name not in _INTERNAL))

    def topic(self, topic: str) -> LiveTopic:
        """Return the topic of this name. Raise ResourceNotFoundError if it does not exist. This takes one request."""
        known = self.describe([topic])
        if topic not in known:
            raise ResourceNotFoundError(f"there is no {topic} at {self._servers}")
        return known[topic]

    def existing_topic(self, topic: str) -> LiveTopic:
        """Return a topic that is known to exist. Retry if the broker that answers does not know the topic yet."""
        end = time.monotonic() + unknown_s(self._timeout_s)
        while True:
            try:
                return self.topic(topic)
            except ResourceNotFoundError:
                if time.monotonic() > end:
                    raise
                time.sleep(_AGAIN_S)

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        """Return the existing topics among ``topics``, by name. This takes one request for all topics."""
        names = sorted(set(topics))
        if not names:
            return {}
        which = f"topic {names[0]}" if len(names) == 1 else f"{len(names)} topics"
        doing = f"{which} of {self._servers} cannot be looked up"
        client, collection = self._clients.get(), TopicCollection(names)
        answers = self._answers(
            client,
            lambda timeout_s: client.describe_topics(collection, request_timeout=timeout_s),
            doing,
            leave_out_absent=True,
        )
        return {name: _live_topic(name, answers[name], doing) for name in names if name in answers}

    def effective_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the effective settings of topics, including the cluster's and Kafka's defaults. This takes one
        request.

        The result omits topics that do not exist, and topics for which the login may not read the settings.
        """
        answers, _ = self._settings_of(list(topics), f"the settings of topics at {self._servers} cannot be read")
        return {topic: _values(answer) for topic, answer in answers.items()}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first readable offset of each partition. This asks for the leaders, and then each leader once."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end of each partition: the high watermark, or for ``read_committed`` the last stable offset.

        ``isolation`` overrides the isolation of this object. The call asks for the leaders, and then each leader once.
        """
        return self._offsets(dict.fromkeys(partitions, _LATEST), isolation)

    def ends(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, LiveEnd]:
        """Return the ends like :meth:`end_offsets`, each with the epoch of the leader that answered."""
        answers = self._list_offsets(dict.fromkeys(partitions, _LATEST), isolation)
        return {where: LiveEnd(answer.offset, _epoch(answer.leader_epoch)) for where, answer in answers.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """For each partition, find the largest epoch up to the given epoch in the leader's log. Return this epoch and
        its end offset.

        The result omits a partition if its leader has no such epoch. A separate consumer connects to the leading
        brokers and sends the requests.
        """
        if not epochs:
            return {}
        doing = f"leader epochs at {self._servers} cannot be looked up"
        consumer = LiveConsumer(reading_configuration(self._configuration, self._timeout_s))
        try:
            if self._login is not None:
                consumer.set_sasl_credentials(*self._login)
            return EpochInquiry(consumer, epochs, doing).ask(self._timeout_s)
        finally:
            consumer.close()

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first readable record at or after each timestamp (milliseconds). None means that
        there is no such record.

        The call asks for the leaders, and then each leader once.
        """
        # Never send a negative timestamp, because it has a special meaning in Kafka.
        specs = {where: admin.OffsetSpec.for_timestamp(max(0, moment)) for where, moment in times.items()}
        return {where: None if offset < 0 else offset for where, offset in self._offsets(specs).items()}

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return a group's committed offset in each partition; None if the group has no commit there. Wait until
        pending transactions have ended."""
        wheres = list(partitions)
        commits = self.commits(group, wheres)
        return {where: commits[where].offset if where in commits else None for where in wheres}

    def commits(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupCommit]:
        """Return a group's commits with metadata and leader epochs, for partitions that have a commit."""
        wheres = list(partitions)
        if not wheres:
            return {}
        doing = f"the offsets of the group {group} at {self._servers} cannot be looked up"
        with GroupClient({**self._configuration, "group.id": group}, self._login) as client:
            places = client.fetch_commits(wheres, doing, self._timeout_s)
        return {
            (place.topic, place.partition): GroupCommit(place.offset, place.metadata, _epoch(place.leader_epoch))
            for place in places
            if place.offset >= 0
        }

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | GroupCommit]) -> None:
        """Commit the offsets of the next records to read, for a group that has no members at the moment.

        Metadata is committed too, but leader epochs are not. BrokerError names the first partition that was refused;
        some of the other partitions may be committed.
        """
        if not offsets:
            return
        client = self._clients.get()
        commits = {where: GroupCommit(each) if isinstance(each, int) else each for where, each in offsets.items()}
        places = [KafkaPartition(*where, commit.offset, commit.metadata or "") for where, commit in commits.items()]
        wanted = ConsumerGroupTopicPartitions(group, places)

        answers = self._answers(
            client,
            lambda timeout_s: client.alter_consumer_group_offsets([wanted], request_timeout=timeout_s),
            doing := f"offsets of the group {group} cannot be committed at {self._servers}",
        )
        for place in answers[group].topic_partitions or ():
            if place.error is not None:
                raise fault(place.error, f"{doing}, for {place.topic}-{place.partition}")

    def create_topic(self, topic: str, partitions: int, replication_factor: int, settings: Mapping[str, str]) -> None:
        """Create a topic, and wait until the brokers know it. If ``partitions`` or ``replication_factor`` is -1, the
        cluster's default applies.

        Raise BrokerError for a refusal.
        """
        new = admin.NewTopic(topic, partitions, replication_factor, config=dict(settings))
        doing = f"topic {topic} cannot be created at {self._servers}"
        self._one(lambda timeout_s: self._client.create_topics([new], request_timeout=timeout_s)[topic], doing)
        self.existing_topic(topic)

    def provide_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with the cluster's defaults, or add partitions if it exists and has fewer.

        The broker that lists the topic may not know about a recent creation or growth yet. So accept that the topic
        exists, or has these partitions already.
        """
        try:
            self.create_topic(topic, partitions, -1, {})
        except BrokerError as error:
            doing = f"partitions cannot be added to topic {topic} at {self._servers}"
            with translate_errors(doing):
                known = self._client.list_topics(topic, timeout=self._timeout_s).topics[topic]
            if known.error is not None:
                if _code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            elif len(known.partitions) < partitions:
                new, client = [admin.NewPartitions(topic, partitions)], self._client
                try:
                    self._one(lambda timeout_s: client.create_partitions(new, request_timeout=timeout_s)[topic], doing)
                except BrokerError as refusal:
                    if _code_of(refusal) != KafkaError.INVALID_PARTITIONS:
                        raise

    def delete_records(self, where: TopicPartition, offset: int) -> None:
        """Delete a partition's records before ``offset``, as Kafka's retention does."""
        place = KafkaPartition(*where, offset)
        doing = f"records of {_name_of(where)} before {offset} cannot be deleted at {self._servers}"

        def ask(timeout_s: float) -> Future[admin.DeletedRecords]:
            left_s = self._check_leaders(self._client, [where], timeout_s, doing)
            return self._client.delete_records([place], request_timeout=left_s)[place]

        self._one(ask, doing)

    def change_settings(self, topic: str, settings: Mapping[str, str | None], *, dry_run: bool = False) -> None:
        """Set these settings of a topic; remove a setting whose value is None. Other settings stay. With ``dry_run``,
        the brokers only check the settings. This takes one request."""
        kinds = admin.AlterConfigOpType
        changes = [
            admin.ConfigEntry(name, value, incremental_operation=kinds.DELETE if value is None else kinds.SET)
            for name, value in sorted(settings.items())
        ]
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=changes)
        doing = f"{', '.join(sorted(settings))} of {topic} cannot be changed at {self._servers}"
        self._one(
            lambda timeout_s: self._client.incremental_alter_configs(
                [resource], request_timeout=timeout_s, validate_only=dry_run
            )[resource],
            doing,
        )

    def settings_of(self, topic: str) -> Mapping[str, ConfigEntry]:
        """Return the entries of all settings of a topic, by name. This takes one request."""
        return self._settings(admin.ResourceType.TOPIC, topic)

    def broker_settings(self, broker: int) -> dict[str, str]:
        """Return all settings of a broker that have a value. This takes one request."""
        return _values(self._settings(admin.ResourceType.BROKER, str(broker)))

    def _settings(self, kind: ResourceType, name: str) -> Mapping[str, ConfigEntry]:
        resource = admin.ConfigResource(kind, name)
        doing = f"the settings of {name} at {self._servers} cannot be read"
        return self._one(
            lambda timeout_s: self._client.describe_configs([resource], request_timeout=timeout_s)[resource], doing
        )

    def _offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        return {where: answer.offset for where, answer in self._list_offsets(specs, isolation).items()}

    def _list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], isolation: Isolation | None
    ) -> dict[TopicPartition, ListOffsetsResultInfo]:
        if not specs:
            return {}
        client = self._clients.get()
        committed = (isolation or self._isolation) == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        doing = f"offsets of {self._servers} cannot be looked up"

        def ask(timeout_s: float) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
            left_s = self._check_leaders(client, specs, timeout_s, doing)
            wanted = {KafkaPartition(*where): spec for where, spec in specs.items()}
            futures = client.list_offsets(wanted, isolation_level=level, request_timeout=left_s)
            return {(theirs.topic, theirs.partition): future for theirs, future in futures.items()}

        answers = self._answers(client, ask, doing)
        return {where: answers[where] for where in specs}

    def _check_leaders(
        self, client: LiveAdmin, partitions: Iterable[TopicPartition], timeout_s: float, doing: str
    ) -> float:
        """Raise the error of a partition without a leader; see ``LiveAdmin.leader_errors``. Return the seconds that are
        left of ``timeout_s``."""
        end = time.monotonic() + timeout_s
        for where, error in client.leader_errors(partitions, timeout_s, doing).items():
            raise self._name_absent(fault(error, f"{doing}, for {_name_of(where)}"), _name_of(where))
        return max(_AGAIN_S, end - time.monotonic())

    def _one(self, ask: Callable[[float], Future[Answer]], doing: str) -> Answer:
        """Return the answer to a single request; see :meth:`_answers`."""
        return self._answers(self._client, lambda timeout_s: {"": ask(timeout_s)}, doing)[""]

    @property
    def _client(self) -> LiveAdmin:
        return self._clients.get()

    def _settings_of(
        self, topics: Sequence[str], doing: str
    ) -> tuple[dict[str, dict[str, ConfigEntry]], dict[str, BrokerDeniedError]]:
        """Return two mappings by topic: the settings in the library's form, and the errors for topics that the login
        may not read."""
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in topics]

        def ask(timeout_s: float) -> dict[str, Future[dict[str, ConfigEntry]]]:
            if not resources:
                return {}
            futures = self._client.describe_configs(resources, request_timeout=timeout_s)
            return {resource.name: future for resource, future in futures.items()}

        return self._each(ask, doing)

    def _each(
        self, ask: Callable[[float], Mapping[Asked, Future[Answer]]], doing: str
    ) -> tuple[dict[Asked, Answer], dict[Asked, BrokerDeniedError]]:
        """Return two mappings by resource: the answers, and the errors of denied access. Resources that no longer exist
        are in neither."""
        client = self._clients.get()
        end = time.monotonic() + self._timeout_s
        answers: dict[Asked, Answer] = {}
        denied: dict[Asked, BrokerDeniedError] = {}
        for what, future in ask(self._timeout_s).items():
            try:
                answers[what] = self._answer(client, what, future, doing, end)
            except BrokerDeniedError as error:
                denied[what] = error
            except ResourceNotFoundError:
                continue
        client.hear()
        return answers, denied

    def _answers(
        self,
        client: LiveAdmin,
        ask: Callable[[float], Mapping[Asked, Future[Answer]]],
        doing: str,
        *,
        leave_out_absent: bool = False,
    ) -> dict[Asked, Answer]:
        """Send requests; repeat them after a retryable error such as a change of leaders.

        With ``leave_out_absent``, the result omits unknown topics instead of raising an error.
        """
        begun = time.monotonic()
        end = begun + self._timeout_s
        while True:
            # Allow at least ``_AGAIN_S`` seconds for the answer, even in the last attempt.
            timeout_s = max(_AGAIN_S, end - time.monotonic())
            answers: dict[Asked, Answer] = {}
            try:
                for what, future in ask(timeout_s).items():
                    try:
                        answers[what] = self._answer(client, what, future, doing, end)
                    except ResourceNotFoundError:
                        if not leave_out_absent:
                            raise
            except (BrokerUnavailableError, ResourceNotFoundError) as error:
                # Repeat all requests, so that all answers are from the same time. A topic or partition that a broker
                # reports as absent may be so new that this broker does not know it yet. So retry, but only for a few
                # seconds.
                last = end - _AGAIN_S if error.retryable else begun + unknown_s(self._timeout_s)
                if time.monotonic() > last:
                    raise
                time.sleep(_AGAIN_S)
            else:
                client.hear()
                return answers

    def _answer(self, client: LiveAdmin, what: object, future: Future[Answer], doing: str, end: float) -> Answer:
        try:
            # The client reports denied access by a callback, which runs only while the client is polled.
            answer = await_answer(client, future, end, partial(client.listen, doing))
        except TimeoutError:
            raise client.trouble.unavailable(doing, self._timeout_s) from None
        except KafkaException as error:
            client.listen(doing)
            raise self._fault(client, error, what, doing) from error
        if getattr(answer, "offset", None) == OFFSET_INVALID:
            # If a broker is dead, the library returns OFFSET_INVALID instead of an error.
            raise client.trouble.unavailable(doing, self._timeout_s)
        return answer

    def _fault(self, client: LiveAdmin, error: KafkaException, what: object, doing: str) -> TieredStoreError:
        """Return the error of one partition, or the connection's error if that error explains more."""
        named = _name_of(what)
        of = f"{doing}, for {named}" if named else doing
        if error.args[0].code() == KafkaError._NOENT and isinstance(what, tuple):  # it had one when it was checked
            return BrokerUnavailableError(f"{doing}: {named} has no leader now")
        return self._name_absent(client.trouble.failure(error.args[0], of, self._timeout_s), named)

    def _name_absent(self, error: TieredStoreError, named: str) -> TieredStoreError:
        """If the error says that a topic or partition does not exist, return an error that names it and the brokers."""
        is_absent = isinstance(error, ResourceNotFoundError) and named
        return ResourceNotFoundError(f"there is no {named} at {self._servers}") if is_absent else error

    def list_topics(self, *positional: Any, **named: Any) -> Any:
        """Return what the client's own ``list_topics`` returns."""
        return self._client.list_topics(*positional, **named)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use this user name and password for new connections."""
        self._login = username, password
        self._clients.get().set_sasl_credentials(username, password)

    def close(self) -> None:
        """Close this process's client. The next call creates a new client."""
        self._clients.close()

    def __repr__(self) -> str:
        return f"LiveCluster(bootstrap.servers={self._servers!r}, isolation={self._isolation!r})"


def _code_of(error: BrokerError) -> int | None:
    if not isinstance(error.__cause__, KafkaException):
        return None
    code: int = error.__cause__.args[0].code()
    return code


def _name_of(what: object) -> str:
    """Return the text that errors use for a topic, or for a partition (topic and number)."""
    return "-".join(map(str, cast("tuple[object, ...]", what))) if isinstance(what, tuple) else f"{what}"


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _epoch(theirs: int | None) -> int | None:
    return None if theirs is None or theirs < 0 else theirs


def _live_topic(name: str, described: TopicDescription, doing: str) -> LiveTopic:
    topic_id = uuid_of(described.topic_id)
    if topic_id.bytes == bytes(16):
        raise BrokerError(f"{doing}: the broker returned no topic id; Kafka 2.8 or later is needed")
    leaderless = (each.id for each in described.partitions if each.leader is None or each.leader.id < 0)
    return LiveTopic(name, topic_id, tuple(sorted(each.id for each in described.partitions)), frozenset(leaderless))


def uuid_of(theirs: KafkaUuid | None) -> Uuid:
    """Convert a topic's id, which the library represents as two signed longs. Return zero if the broker has no topic
    ids."""
    if theirs is None:
        return Uuid(bytes(16))
    high, low = theirs.get_most_significant_bits(), theirs.get_least_significant_bits()
    return Uuid(high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))


def is_of_topic(entry: ConfigEntry) -> bool:
    """Return True if the topic itself sets this value. Otherwise, the value is a default. ``entry`` may also be a
    synonym of a ``ConfigEntry``."""
    # Depending on the library's version, the source is a number or a member of the enumeration.
    return bool(getattr(entry.source, "value", entry.source) == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


_FIRST_COMMITS_S: Final = 1.0
"""Timeout in seconds of the first request for commits. It is short, because a request cannot be interrupted. Each later
attempt may take as long as all earlier attempts together."""


class GroupClient(Closing):
    """Reads commits from a group's coordinator without joining the group. Not thread-safe.

    The client is a consumer, not an administrative client. If a broker sends an administrative client the error "not
    coordinator", librdkafka 2.x crashes the process (librdkafka issue 5040). For example, a broker that has just become
    coordinator sends this error.
    """

    def __init__(self, configuration: Mapping[str, str], login: tuple[str, str] | None = None) -> None:
        """Create the client. ``configuration`` names the group; ``login`` (user, password) replaces the
        credentials in ``configuration``.
        """
        # read_committed makes the coordinator wait for pending transactional commits.
        own = {"enable.auto.commit": "false", "isolation.level": "read_committed"}
        self._client = LiveConsumer({**configuration, **own})
        if login is not None:
            self._client.set_sasl_credentials(*login)

    def fetch_commits(self, partitions: Sequence[TopicPartition], doing: str, timeout_s: float) -> list[KafkaPartition]:
        """Return the commit of each partition, retrying temporary errors. A negative offset means no commit.

        Raise BrokerDeniedError, BrokerUnavailableError (no answer in ``timeout_s``), or BrokerError. The messages begin
        with ``doing``.
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
        """Close the connections."""
        self._client.close()

    def _ask(
        self, partitions: Sequence[TopicPartition], doing: str, wait_s: float, timeout_s: float
    ) -> list[KafkaPartition]:
        trouble = self._client.trouble
        try:
            places = self._client.committed([KafkaPartition(*where) for where in partitions], timeout=wait_s)
        except KafkaException as error:
            # Poll, because the client reports denied access to the cluster by a callback that runs only while the
            # client is polled. Denied access to the group is a message that ``poll`` returns.
            message = self._client.poll(0)
            refusal = None if message is None else message.error()
            if refusal is not None and kind_of(refusal) is BrokerDeniedError:
                raise fault(refusal, doing) from error
            final = trouble.final(doing)
            if final is not None:
                raise final from error
            raise trouble.failure(error.args[0], doing, timeout_s) from error
        for place in places:
            if place.error is not None:
                raise fault(place.error, f"{doing}, for {place.topic}-{place.partition}")
        return places
