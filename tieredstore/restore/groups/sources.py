"""The sources of the offsets of consumer groups: a running cluster, a snapshot, or a file.

Separate from ``moving``, which treats all of them alike.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, with_config

from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, CommittedOffset, GroupOffsets
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.process.whole_files import read_named
from tieredstore.versions import fault_in

if TYPE_CHECKING:
    from tieredstore.live.cluster_state import ClusterState, LiveGroup
    from tieredstore.restore.produce.offset_map import OffsetMap

_FORM: Final = '{"GROUP": {"TOPIC": {"PARTITION": OFFSET}}}'
_Offset: TypeAlias = Annotated[int, Field(ge=0, le=MAX_OFFSET + 1)]


@dataclass(frozen=True, slots=True)
class SourceGroups:
    """Groups with their committed offsets. ``left`` has the others by name, with the reason why they cannot move."""

    groups: Sequence[GroupOffsets]
    left: Mapping[str, str] = field(default_factory=dict[str, str])

    def choose(self, names: Sequence[str]) -> SourceGroups:
        """Return the groups with these names or globs, all if there are none.

        Raise ResourceNotFoundError for a name that is not here.
        """
        known = [*(group.group for group in self.groups), *self.left]
        chosen = _chosen(known, names)
        return SourceGroups(
            [group for group in self.groups if group.group in chosen],
            {name: reason for name, reason in self.left.items() if name in chosen},
        )


def obstacle_of(group: LiveGroup) -> str | None:
    """Return why a group's offsets cannot be moved; None if they can. The caller appends the name of the cluster."""
    if group.kind == "other":
        return "neither a classic nor a consumer group, as share and streams groups are,"
    return "stop its consumers: it has members" if group.has_members else None


def groups_of_snapshot(snapshot: ClusterSnapshot) -> SourceGroups:
    """Return the groups of a cluster snapshot."""
    left = {each.name: each.reason for each in snapshot.not_held if each.kind == "group"}
    return SourceGroups(snapshot.groups, left)


def groups_of_cluster(cluster: ClusterState, offset_map: OffsetMap, names: Sequence[str]) -> SourceGroups:
    """Read what groups with these names or globs have committed in the topics of a run; all groups without names.

    Groups with members are left, because they go on while their offsets move.
    """
    known = cluster.listed_groups()
    partitions = [(topic, number) for topic in offset_map.topics for number in offset_map.partitions(topic)]
    groups: list[GroupOffsets] = []
    left: dict[str, str] = {}
    for name in sorted(_chosen(list(known), names)):
        here = known[name]
        reason = obstacle_of(here)
        if here.kind == "other" or reason is not None:
            left[name] = f"{reason} in the old cluster"
            continue
        commits = sorted(cluster.commits(name, partitions).items())
        offsets = [CommittedOffset(*where, each.offset, each.metadata or "") for where, each in commits]
        groups.append(GroupOffsets(name, here.kind, tuple(offsets)))
    return SourceGroups(groups, left)


def groups_of_file(path: Path) -> SourceGroups:
    """Read groups from a file: ``{"GROUP": {"TOPIC": {"PARTITION": OFFSET}}}``.

    An offset may also be ``{"offset": OFFSET, "metadata": TEXT}``. Raise ConfigError for another content.
    """
    try:
        document = _FILE.validate_json(read_named(path), strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path} does not have groups as {_FORM}: {fault_in(error)}") from error
    return SourceGroups([_group_of(name, topics) for name, topics in sorted(document.items())])


def _chosen(known: Sequence[str], names: Sequence[str]) -> set[str]:
    chosen: set[str] = set()
    for name in names:
        matching = {each for each in known if each == name or fnmatch.fnmatchcase(each, name)}
        if not matching:
            raise ResourceNotFoundError(f"there are no offsets of a group {name!r:.300}")
        chosen |= matching
    return chosen if names else set(known)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Commit:
    """An offset with the text that was committed along with it."""

    offset: _Offset
    metadata: str = ""


_Partitions: TypeAlias = dict[Annotated[int, Field(ge=0, le=MAX_INT32)], _Offset | _Commit]
_FILE: Final = TypeAdapter(dict[str, dict[str, _Partitions]])


def _group_of(name: str, topics: Mapping[str, _Partitions]) -> GroupOffsets:
    offsets: list[CommittedOffset] = []
    for topic, partitions in topics.items():
        for number, given in partitions.items():
            commit = given if isinstance(given, _Commit) else _Commit(given)
            offsets.append(CommittedOffset(topic, number, commit.offset, commit.metadata))
    return GroupOffsets(name, "classic", tuple(offsets))
