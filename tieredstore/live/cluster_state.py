"""A cluster's topic settings, ACLs and groups' offsets, for a snapshot of the cluster."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaException, TopicCollection, admin

from tieredstore.errors import BrokerError, BrokerUnavailableError
from tieredstore.format.cluster_snapshot import AclEntry, CommittedOffset, GroupOffsets, NotHeld, TopicSettings
from tieredstore.live.cluster import LiveCluster, is_of_topic, uuid_of
from tieredstore.live.faults import fault
from tieredstore.process.retry import RetryPolicy

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AclBinding,
        ConfigEntry,
        ConsumerGroupListing,
        DescribeClusterResult,
        TopicDescription,
    )

_GROUPS_S: Final = 600.0
"""Maximum seconds to spend on the offsets of all groups."""

_OTHER_GROUP: Final = (
    "it is neither a classic nor a consumer group; offsets of other groups, such as share and streams groups, are not "
    "stored"
)


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group at the brokers. A group of the kind ``other`` uses neither the classic nor the consumer protocol, for
    example a share group."""

    kind: Literal["classic", "consumer", "other"]
    has_members: bool


class ClusterState(LiveCluster):
    """Reads the state of a cluster for a snapshot. The results omit resources that the login may not read, and list the
    names of these resources.

    Topics that the login may not describe are missing from these lists too, because brokers do not report such topics.
    """

    def __init__(self, properties: Mapping[str, str], *, timeout_s: float = 60.0, group_s: float = 10.0) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker.

        Wait at most ``group_s`` for one group's offsets, because the coordinator never answers while a transaction
        hangs.
        """
        super().__init__(properties, isolation="read_uncommitted", timeout_s=timeout_s)
        self._group_s = group_s

    def cluster_id(self) -> str:
        """Return the cluster's id. This takes one request."""
        return str(self._describe_cluster().cluster_id)

    def topic_settings(self) -> tuple[list[TopicSettings], list[NotHeld]]:
        """Return all topics except internal topics, each with the settings that it overrides. Also return the topics
        whose settings the login may not read.

        The method sends three requests: one lists the topics, two describe them.
        """
        names = self.topics()
        doing = f"the settings of topics at {self._servers} cannot be read"
        described, _ = self._each(
            lambda timeout_s: (
                self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s) if names else {}
            ),
            doing,
        )
        configs, denied = self._settings_of(names, doing)
        found = [
            _topic_settings(name, described[name], configs[name])
            for name in names
            if name in described and name in configs and not described[name].is_internal
        ]
        return found, [NotHeld("topic", name, str(error)) for name, error in denied.items()]

    def acls(self) -> tuple[AclEntry, ...] | None:
        """Return all ACLs. Return an empty tuple if the brokers have no authorizer, and None if the login may not list
        ACLs. This takes up to two requests."""
        # librdkafka 2.16 returns an empty list if listing is refused, so first ask if the login has permission.
        operations = self._describe_cluster().authorized_operations or ()
        if admin.AclOperation.DESCRIBE not in operations:
            return None
        any_acl = admin.AclBindingFilter(
            admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None, admin.AclOperation.ANY,
            admin.AclPermissionType.ANY,
        )  # fmt: skip
        doing = f"the ACLs of {self._servers} cannot be read"
        answer = self._one(lambda timeout_s: self._client.describe_acls(any_acl, request_timeout=timeout_s), doing)
        return tuple(sorted((_acl_entry(each) for each in answer), key=repr))

    def list_groups(self) -> dict[str, LiveGroup]:
        """Return all groups by name, ascending. This takes two requests per broker."""
        # Retry, because a coordinator that is still loading refuses to list its groups.
        policy = RetryPolicy(attempts=100, max_delay_s=1.0, timeout_s=self._timeout_s)
        return policy.call(f"listing the groups of {self._servers}", lambda _: self._list_groups())

    def groups(self, topics: Sequence[TopicSettings]) -> tuple[list[GroupOffsets], list[NotHeld]]:
        """Return the offsets that each group has committed in these topics. Also return the groups whose offsets cannot
        be read.

        The method sends one request per broker, and one request per group. Groups without a committed offset are left
        out.
        """
        doing = f"the groups of {self._servers} cannot be listed"
        listed = self.list_groups()
        partitions = [(each.topic, number) for each in topics for number in range(each.partition_count)]
        held: list[GroupOffsets] = []
        not_held = [NotHeld("group", name, _OTHER_GROUP) for name, each in listed.items() if each.kind == "other"]
        brief = self.within(min(self._group_s, self._timeout_s))
        end = time.monotonic() + _GROUPS_S
        for name, group in listed.items():
            if group.kind == "other":
                continue
            if time.monotonic() > end:
                raise BrokerUnavailableError(f"{doing}: reading their offsets takes longer than {_GROUPS_S:g} s")
            try:
                commits = brief.commits(name, partitions)
            except BrokerError as error:
                not_held.append(NotHeld("group", name, str(error)))
                continue
            offsets = [CommittedOffset(*where, each.offset, each.metadata or "") for where, each in commits.items()]
            if offsets:
                held.append(GroupOffsets(name, group.kind, tuple(offsets)))
        return held, not_held

    def _list_groups(self) -> dict[str, LiveGroup]:
        doing = f"the groups of {self._servers} cannot be listed"
        listed = self._one(lambda timeout_s: self._client.list_consumer_groups(request_timeout=timeout_s), doing)
        for error in listed.errors:
            raise fault(error, doing)
        found = {each.group_id: _live_group(each) for each in listed.valid}
        try:
            with warnings.catch_warnings():
                # Use the deprecated call, because its replacement hides groups that are not consumer groups.
                warnings.filterwarnings("ignore", "list_groups", DeprecationWarning)
                names = {each.id for each in self._client.list_groups(timeout=self._timeout_s)}
        except KafkaException as error:
            raise self._client.trouble.failure(error.args[0], doing, self._timeout_s) from error
        others = {name: LiveGroup("other", has_members=True) for name in names - found.keys()}
        return dict(sorted((found | others).items()))

    def _describe_cluster(self) -> DescribeClusterResult:
        return self._one(
            lambda timeout_s: self._client.describe_cluster(
                include_authorized_operations=True, request_timeout=timeout_s
            ),
            f"the cluster {self._servers} cannot be described",
        )


def _live_group(listed: ConsumerGroupListing) -> LiveGroup:
    # Only in these two states a group certainly has no members. In any other state it may have some, because the
    # library does not know all states of the consumer protocol's groups.
    has_members = listed.state not in {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}
    return LiveGroup("consumer" if listed.type is ConsumerGroupType.CONSUMER else "classic", has_members)


def _topic_settings(name: str, described: TopicDescription, entries: Mapping[str, ConfigEntry]) -> TopicSettings:
    mine = {key: entry for key, entry in entries.items() if is_of_topic(entry)}
    return TopicSettings(
        name,
        str(uuid_of(described.topic_id)),
        len(described.partitions),
        max((len(each.replicas) for each in described.partitions), default=0),
        {key: entry.value for key, entry in sorted(mine.items()) if entry.value is not None and not entry.is_sensitive},
        tuple(sorted(key for key, entry in mine.items() if entry.value is None or entry.is_sensitive)),
    )


def _acl_entry(binding: AclBinding) -> AclEntry:
    return AclEntry(
        binding.restype.name, binding.name, binding.resource_pattern_type.name, binding.principal, binding.host,
        binding.operation.name, binding.permission_type.name,
    )  # fmt: skip
