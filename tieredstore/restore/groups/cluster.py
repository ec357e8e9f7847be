"""The consumer groups of a running cluster, with what keeps their offsets from being moved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaException

from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import fault
from tieredstore.process.retry import RetryPolicy

_WITHOUT_MEMBERS: Final = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group at the brokers. ``other`` groups, as share and streams groups, have no offsets of consumers."""

    kind: Literal["classic", "consumer", "other"]
    servers: str
    has_members: bool = False

    @property
    def obstacle(self) -> str | None:
        """A sentence why the group's offsets cannot be moved; None if they can."""
        if self.kind == "other":
            return f"it is neither a classic nor a consumer group at {self.servers}, as share and streams groups are"
        if self.has_members:
            return f"it has members at {self.servers}: stop its consumers"
        return None


class GroupCluster(LiveCluster):
    """Reads and writes offsets of groups at the brokers of ``properties``."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raise ConfigError for invalid properties; nothing connects yet."""
        super().__init__(properties, isolation="read_uncommitted")

    def groups_here(self) -> dict[str, LiveGroup]:
        """Return all groups by name. Two requests per broker."""
        # A coordinator that is still loading groups refuses to list them.
        policy = RetryPolicy(attempts=100, max_delay_s=1.0, timeout_s=self._timeout_s)
        return policy.call(f"listing the groups of {self._servers}", lambda _: self._list_groups())

    def _list_groups(self) -> dict[str, LiveGroup]:
        client: Any = self._clients.get()
        doing = f"the groups of {self._servers} cannot be listed"

        def ask(timeout_s: float) -> dict[str, Future[Any]]:
            return {"": client.list_consumer_groups(request_timeout=timeout_s)}

        listed = self._answers(client, ask, doing)[""]
        for error in listed.errors:
            raise fault(error, doing)
        found = {each.group_id: self._group_of(each) for each in listed.valid}
        try:
            # The newer call leaves out groups of other kinds.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                names = {each.id for each in client.list_groups(timeout=self._timeout_s)}
        except KafkaException as error:
            raise self._failure(client, error, doing) from error
        return found | {name: LiveGroup("other", self._servers) for name in names - found.keys()}

    def _group_of(self, listed: Any) -> LiveGroup:
        # The library does not know the states of new groups that assign partitions, so only these are without members.
        has_members = listed.state not in _WITHOUT_MEMBERS
        return LiveGroup(
            "consumer" if listed.type is ConsumerGroupType.CONSUMER else "classic", self._servers, has_members
        )
