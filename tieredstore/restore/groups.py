"""Moves of consumer groups. Each offset of a group becomes the offset that the same record got in a run of ``restore
produce``.

The groups' old offsets come from a running cluster, a snapshot, or a file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, with_config

from tieredstore.api.outcomes import Outcome, Plan, Status
from tieredstore.errors import BrokerError, ConfigError, ResourceNotFoundError, excerpt
from tieredstore.format.cluster_snapshot import ClusterSnapshot, CommittedOffset, GroupOffsets
from tieredstore.limits import MAX_INT32, MAX_OFFSET
from tieredstore.live.cluster import GroupCommit
from tieredstore.model import TopicPartition
from tieredstore.process.whole_files import read_named
from tieredstore.restore.produce.offset_map import FirstUnread
from tieredstore.versions import fault_in

if TYPE_CHECKING:
    from tieredstore.live.cluster_state import ClusterState, LiveGroup
    from tieredstore.restore.produce.offset_map import OffsetMap

_FORM: Final = '{"GROUP": {"TOPIC": {"PARTITION": OFFSET}}}'
_Offset: TypeAlias = Annotated[int, Field(ge=0, le=MAX_OFFSET + 1)]


@dataclass(frozen=True, slots=True)
class SourceGroups:
    """Consumer groups with their committed offsets. ``left`` has the names of groups that cannot be moved, each with
    the reason."""

    groups: Sequence[GroupOffsets]
    left: Mapping[str, str] = field(default_factory=dict[str, str])

    def choose(self, names: Sequence[str]) -> SourceGroups:
        """Return the groups that match these names or globs. Without names, return all groups.

        Raise ResourceNotFoundError for a name or glob that matches no group.
        """
        known = [*(group.group for group in self.groups), *self.left]
        chosen = _choose(known, names)
        return SourceGroups(
            [group for group in self.groups if group.group in chosen],
            {name: reason for name, reason in self.left.items() if name in chosen},
        )


def obstacle_of(group: LiveGroup) -> str | None:
    """Return the reason why a group's offsets cannot be moved, or None if they can. The reason does not name the
    group's cluster; the caller adds the name."""
    if group.kind == "other":
        return "it is neither a classic nor a consumer group"
    return "stop its consumers: it has members" if group.has_members else None


def groups_of_snapshot(snapshot: ClusterSnapshot) -> SourceGroups:
    """Return the groups of a cluster snapshot."""
    left = {each.name: each.reason for each in snapshot.not_held if each.kind == "group"}
    return SourceGroups(snapshot.groups, left)


def groups_of_cluster(cluster: ClusterState, offset_map: OffsetMap, names: Sequence[str]) -> SourceGroups:
    """Read the offsets that groups have committed in the topics of a run. ``names`` are names or globs of groups;
    without names, read all groups.

    Put groups with members into ``left``, because their members might commit further offsets during the move. Also put
    groups there whose offsets the cluster refuses to tell. Leave out groups with members that have no offsets in these
    topics.
    """
    known = cluster.list_groups()
    partitions = [(topic, number) for topic in offset_map.topics for number in offset_map.partitions(topic)]
    groups: list[GroupOffsets] = []
    left: dict[str, str] = {}
    for name in sorted(_choose(list(known), names)):
        here = known[name]
        reason = obstacle_of(here)
        try:
            # Only the offsets of classic and consumer groups can be read.
            commits = {} if here.kind == "other" else cluster.commits(name, partitions)
        except BrokerError as error:
            if error.retryable:
                raise
            left[name] = str(error)
            continue
        if here.kind == "other" or (reason is not None and commits):
            left[name] = f"{reason} in the old cluster"
        elif reason is None:
            offsets = [
                CommittedOffset(*where, each.offset, each.metadata or "") for where, each in sorted(commits.items())
            ]
            groups.append(GroupOffsets(name, here.kind, tuple(offsets)))
    return SourceGroups(groups, left)


def groups_of_file(path: Path) -> SourceGroups:
    """Read groups from a file: ``{"GROUP": {"TOPIC": {"PARTITION": OFFSET}}}``.

    In the file, OFFSET may also be ``{"offset": OFFSET, "metadata": TEXT}``. Raise ConfigError if the file has any
    other content.
    """
    try:
        document = _FILE.validate_json(read_named(path), strict=True)
    except ValidationError as error:
        raise ConfigError(f"{path} does not have groups as {_FORM}: {fault_in(error)}") from error
    return SourceGroups([_group_of(name, topics) for name, topics in sorted(document.items())])


def _choose(known: Sequence[str], names: Sequence[str]) -> set[str]:
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
    """An offset, and the metadata (a text) that was committed with it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome(Outcome):
    """The outcome for one offset of the group ``name``. ``topic`` and ``partition`` name the source in the bucket.

    If keys were hashed again, the target offset depends on all source partitions of the topic. In this case
    ``partition`` and ``offset`` are None, and the group reads at most ``read_again`` records a second time.

    ``committed_offset`` is the group's current commit in the target. ``Translation`` explains ``where`` and
    ``difference``.
    """

    offset: int | None = None
    target_topic: str | None = None
    target_partition: int | None = None
    target_offset: int | None = None
    committed_offset: int | None = None
    where: str | None = None
    difference: int | None = None
    read_again: int | None = None
    metadata: str = ""

    @property
    def target(self) -> TopicPartition:
        """The target partition; raises ValueError for an outcome without a target."""
        if self.target_topic is None or self.target_partition is None:
            raise ValueError("the outcome has no target")
        return self.target_topic, self.target_partition


def plan_groups(offset_map: OffsetMap, source: SourceGroups, cluster: ClusterState) -> Plan:
    """Return a plan to commit the groups' translated offsets to the target cluster.

    The status is ``failed`` for a group that has members in the target cluster, or that is of a kind that cannot be
    moved there. The status is ``kept`` for groups that cannot be moved from the source.

    Raise ConfigError if the cluster's topics end before the records of the run. Raise ResourceNotFoundError if no
    group has an offset in the topics of the run.
    """

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        named = {offset.topic for group in source.groups for offset in group.offsets}
        if not source.left and named.isdisjoint(offset_map.topics):
            names = ", ".join(group.group for group in source.groups) or "there are no groups"
            raise ResourceNotFoundError(
                f"no group has an offset in the topics of the run {offset_map.run} ({excerpt(names)}): check the names "
                "of the run and the groups"
            )
        _check_target(offset_map, cluster)
        live = cluster.describe(mapped.target for mapped in offset_map.topics.values())
        starts = cluster.earliest_offsets((name, number) for name, topic in live.items() for number in topic.partitions)
        for name, reason in sorted(source.left.items()):
            yield _outcome(name, "kept", "not_movable", reason)
        here = cluster.list_groups()
        for group in source.groups:
            known = here.get(group.group)
            obstacle = None if known is None else obstacle_of(known)
            if obstacle is not None:
                yield _outcome(group.group, "failed", "refused", f"{obstacle} in the new cluster")
            else:
                translated = [_after_begin(each, starts) for each in translate_group(offset_map, group, starts)]
                yield from _move(group.group, translated, cluster, dry_run=dry_run)

    return Plan("move_groups", ", ".join(group.group for group in source.groups), outcomes)


def _check_target(offset_map: OffsetMap, cluster: ClusterState) -> None:
    """Raise ConfigError if the cluster's topics end before the records of the run. Otherwise groups would move beyond
    the topics' ends."""
    wanted = {
        (mapped.target, partition): end
        for topic, mapped in offset_map.topics.items()
        for partition, end in offset_map.target_ends(topic).items()
    }
    ends = cluster.end_offsets(wanted)
    for where, end in wanted.items():
        if ends[where] < end:
            raise ConfigError(
                f"{where[0]}-{where[1]} ends at {ends[where]} in the target cluster, but the run {offset_map.run} put "
                f"records there up to {end}: name the cluster that the run restored into"
            )


def _after_begin(move: GroupOutcome, starts: Mapping[TopicPartition, int]) -> GroupOutcome:
    """Move the offset to the first offset of its target partition if the target has deleted earlier records. At a
    deleted offset, a consumer with ``auto.offset.reset=latest`` would skip all records."""
    if move.target_offset is None or move.target_offset >= (begin := starts.get(move.target, 0)):
        return move
    note = f"{move.target_topic}-{move.target_partition} begins at {begin}: earlier records were deleted"
    return replace(move, target_offset=begin, reason="; ".join(filter(None, (move.reason, note))))


def _move(
    group: str, translated: Sequence[GroupOutcome], cluster: ClusterState, *, dry_run: bool
) -> Generator[GroupOutcome]:
    """Commit the new offsets of one group with one request, and yield an outcome for each offset."""
    moves = [each for each in translated if each.target_offset is not None]
    yield from (each for each in translated if each.target_offset is None)
    try:
        commits = cluster.commits(group, [each.target for each in moves])
        due = [each for each in moves if not _is_there(each, commits)]
        if due and not dry_run:
            commits_due = {each.target: GroupCommit(each.target_offset or 0, each.metadata) for each in due}
            cluster.commit_offsets(group, commits_due)
    except (BrokerError, ResourceNotFoundError) as error:
        yield replace(_outcome(group, "failed", "refused"), error=error)
        return
    for each in moves:
        now = commits.get(each.target)
        known = replace(each, committed_offset=None if now is None else now.offset)
        if _is_there(each, commits):
            yield replace(known, status="kept", code="there")
        else:
            yield replace(known, status="planned" if dry_run else "done", code="moved")


def _is_there(move: GroupOutcome, commits: Mapping[TopicPartition, GroupCommit]) -> bool:
    now = commits.get(move.target)
    return now is not None and (now.offset, now.metadata or "") == (move.target_offset, move.metadata)


def translate_group(
    offset_map: OffsetMap, group: GroupOffsets, starts: Mapping[TopicPartition, int]
) -> Iterator[GroupOutcome]:
    """Yield a planned outcome for each target offset of a group.

    ``starts`` has the first offsets of target partitions. If keys were hashed again, the group gets these offsets in
    partitions without records. Without a committed offset there, it might skip records that are written before it
    starts. Ignore offsets of topics that the run does not have. Offsets of partitions that the run did not restore have
    the status ``kept``.
    """
    for topic, mapped in offset_map.topics.items():
        commits = [commit for commit in group.offsets if commit.topic == topic]
        if not mapped.is_rehashed:
            yield from (_translate(offset_map, group.group, commit) for commit in commits)
        elif commits:
            yield from _first_unread(offset_map, group.group, topic, commits, starts)


def _translate(offset_map: OffsetMap, group: str, commit: CommittedOffset) -> GroupOutcome:
    outcome = replace(
        _outcome(group, "planned", "moved"), topic=commit.topic, partition=commit.partition, offset=commit.offset,
        metadata=commit.metadata,
    )  # fmt: skip
    try:
        found = offset_map.translate((commit.topic, commit.partition), commit.offset)
    except ResourceNotFoundError as error:
        return replace(outcome, status="kept", code="not_restored", reason=str(error))
    reasons = {
        "before": f"{found.difference} before the first restored offset",
        "beyond": f"{found.difference} offsets beyond the restored end",
    }
    return replace(
        outcome, target_topic=found.topic, target_partition=found.partition, target_offset=found.offset,
        where=found.where, difference=found.difference, reason=reasons.get(found.where),
    )  # fmt: skip


def _first_unread(
    offset_map: OffsetMap,
    group: str,
    topic: str,
    commits: Sequence[CommittedOffset],
    starts: Mapping[TopicPartition, int],
) -> Iterator[GroupOutcome]:
    """Yield an outcome for each target partition of a topic whose records were partitioned again by key. The outcome
    has the first offset that the group should read in the partition."""
    restored = offset_map.partitions(topic)
    offsets = {commit.partition: commit.offset for commit in commits if commit.partition in restored}
    notes = [
        f"{offset - restored[partition].stop} offsets beyond the restored end of {topic}-{partition}"
        for partition, offset in sorted(offsets.items())
        if offset > restored[partition].stop
    ]
    notes += [f"no offset in {topic}-{partition}, all unread" for partition in restored if partition not in offsets]
    # The metadata of a commit belongs to one source partition. Keep it only if it is the same for all source
    # partitions.
    texts = sorted({commit.metadata for commit in commits})
    if len(texts) > 1:
        notes.append("the old partitions have different offset metadata, so none is kept")
    outcome = replace(
        _outcome(group, "planned", "moved", "; ".join(notes) or None), topic=topic, where="first_unread",
        target_topic=offset_map.topics[topic].target, metadata=texts[0] if len(texts) == 1 else "",
    )  # fmt: skip
    found = {
        number: FirstUnread(offset, 0) for (name, number), offset in starts.items() if name == outcome.target_topic
    }
    for partition, first in sorted((found | offset_map.first_unread(topic, offsets)).items()):
        yield replace(outcome, target_partition=partition, target_offset=first.offset, read_again=first.read_again)


def _outcome(group: str, status: Status, code: str, reason: str | None = None) -> GroupOutcome:
    return GroupOutcome(action="move_groups", status=status, code=code, name=group, reason=reason)
