"""Sources of groups' offsets, and their translation, without brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tieredstore.api.outcomes import run
from tieredstore.errors import BrokerError, BrokerUnavailableError, ConfigError, PartlyDoneError, ResourceNotFoundError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, CommittedOffset, GroupOffsets, NotHeld
from tieredstore.live.cluster import GroupCommit, LiveTopic
from tieredstore.live.cluster_state import ClusterState, LiveGroup
from tieredstore.model import Isolation, TopicPartition, Uuid
from tieredstore.restore.groups import (
    GroupOutcome,
    SourceGroups,
    groups_of_cluster,
    groups_of_file,
    groups_of_snapshot,
    plan_groups,
    translate_group,
)
from tieredstore.restore.produce.offset_map import OffsetMap
from tieredstore.restore.produce.runs import OffsetRun


class ScriptedCluster(ClusterState):
    """Brokers with these groups and commits. Commits of the group ``refused`` fail, and lookups of ``unreadable``."""

    def __init__(
        self,
        groups: Mapping[str, LiveGroup] | None = None,
        *,
        begin: int = 0,
        end: int = 100,
        refused: str = "",
        unreadable: str = "",
    ) -> None:
        super().__init__({"bootstrap.servers": "localhost:1"})
        self._listed = dict(groups or {})
        self.offsets: dict[str, dict[TopicPartition, GroupCommit]] = {}
        self._begin, self._end, self._refused, self._unreadable = begin, end, refused, unreadable

    def list_groups(self) -> dict[str, LiveGroup]:
        return self._listed

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        return {topic: LiveTopic(topic, Uuid(bytes(16)), (0, 1)) for topic in topics}

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._begin)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self._end)

    def commits(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupCommit]:
        if group == self._unreadable:
            raise BrokerError(f"the offsets of {group} cannot be looked up")
        known = self.offsets.get(group, {})
        return {where: known[where] for where in partitions if where in known}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | GroupCommit]) -> None:
        if group == self._refused:
            raise BrokerError(f"the offsets of {group} are refused")
        for where, each in offsets.items():
            self.offsets.setdefault(group, {})[where] = GroupCommit(each) if isinstance(each, int) else each


def a_map(*, is_rehashed: bool = False) -> OffsetMap:
    made = OffsetMap("r1")
    made.add_topic("orders", "new", is_rehashed=is_rehashed)
    made.extend([OffsetRun("orders", 0, 10, 0, 0, 10), OffsetRun("orders", 1, 0, 1, 0, 10)])
    return made


def group(name: str, *offsets: tuple[str, int, int, str]) -> GroupOffsets:
    return GroupOffsets(name, "classic", tuple(CommittedOffset(*each) for each in offsets))


def outcomes_of(cluster: ClusterState, *groups: GroupOffsets, **left: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []

    def note(outcome: object) -> None:
        assert isinstance(outcome, GroupOutcome)
        why = outcome.reason or (outcome.error and str(outcome.error))
        found.append((outcome.name, outcome.code, outcome.target_partition, outcome.target_offset, why))

    try:
        run(plan_groups(a_map(), SourceGroups(groups, left), cluster)._outcomes(False), note)  # pyright: ignore[reportPrivateUsage]
    except PartlyDoneError:
        found.append(("failed",))
    return found


def test_each_offset_moves_once_and_what_is_there_stays() -> None:
    cluster = ScriptedCluster()
    billing = group("billing", ("orders", 0, 15, "m"), ("orders", 1, 25, ""), ("other", 0, 5, ""), ("orders", 2, 1, ""))
    not_restored = ("billing", "not_restored", None, None, "the run r1 did not restore orders-2")
    beyond = "15 offsets beyond the restored end"
    assert outcomes_of(cluster, billing) == [
        not_restored, ("billing", "moved", 0, 5, None), ("billing", "moved", 1, 10, beyond),
    ]  # fmt: skip
    assert cluster.offsets == {"billing": {("new", 0): GroupCommit(5, "m"), ("new", 1): GroupCommit(10, "")}}
    cluster.offsets["billing"]["new", 1] = GroupCommit(10, "changed")
    assert outcomes_of(cluster, billing) == [
        not_restored, ("billing", "there", 0, 5, None), ("billing", "moved", 1, 10, beyond),
    ]  # fmt: skip


def test_a_group_does_not_move_to_records_that_the_target_has_deleted() -> None:
    """A consumer with ``auto.offset.reset=latest`` would skip all records."""
    cluster, note = ScriptedCluster(begin=7), "new-0 begins at 7: earlier records were deleted"
    billing = group("billing", ("orders", 0, 15, "m"), ("orders", 1, 8, ""))
    assert outcomes_of(cluster, billing) == [("billing", "moved", 0, 7, note), ("billing", "moved", 1, 8, None)]
    assert cluster.offsets == {"billing": {("new", 0): GroupCommit(7, "m"), ("new", 1): GroupCommit(8, "")}}


def test_groups_that_cannot_move_are_named_and_the_others_move() -> None:
    here = {
        "active": LiveGroup("consumer", has_members=True),
        "shared": LiveGroup("other", has_members=True),
        "idle": LiveGroup("consumer", has_members=False),
    }
    cluster = ScriptedCluster(here, refused="denied")
    groups = [group(name, ("orders", 0, 15, "")) for name in ("active", "shared", "denied", "idle", "fresh")]
    assert outcomes_of(cluster, *groups, away="its coordinator is away") == [
        ("away", "not_movable", None, None, "its coordinator is away"),
        ("active", "refused", None, None, "stop its consumers: it has members in the new cluster"),
        (
            "shared", "refused", None, None,
            "it is neither a classic nor a consumer group in the new cluster",
        ),
        ("denied", "refused", None, None, "the offsets of denied are refused"),
        ("idle", "moved", 0, 5, None),
        ("fresh", "moved", 0, 5, None),
        ("failed",),
    ]  # fmt: skip
    assert cluster.offsets.keys() == {"idle", "fresh"}


def test_a_cluster_without_the_records_is_refused_before_any_group() -> None:
    cluster = ScriptedCluster(end=9)
    with pytest.raises(ConfigError, match=r"new-0 ends at 9 .*, but the run r1 put records there up to 10"):
        outcomes_of(cluster, group("billing", ("orders", 0, 15, "")))
    assert not cluster.offsets


def test_the_notes_of_a_topic_whose_keys_were_hashed_anew() -> None:
    hashed, starts = a_map(is_rehashed=True), {("new", 7): 3}
    moved = list(translate_group(hashed, group("g", ("orders", 0, 23, "a"), ("orders", 9, 1, "b")), starts))
    places = [(each.target_partition, each.target_offset, each.read_again) for each in moved]
    assert places == [(0, 10, 0), (1, 0, 0), (7, 3, 0)]
    notes = ["3 offsets beyond the restored end of orders-0", "no offset in orders-1, all unread"]
    notes.append("the old partitions have different offset metadata, so none is kept")
    assert {each.reason for each in moved} == {"; ".join(notes)}
    assert {each.metadata for each in moved} == {""}
    (kept, _) = translate_group(hashed, group("g", ("orders", 0, 15, "a"), ("orders", 1, 1, "a")), {})
    assert (kept.target_offset, kept.reason, kept.metadata) == (5, None, "a")


@pytest.mark.parametrize(
    ("groups", "named"), [([], "there are no groups"), ([group("g", ("payments", 0, 3, "")), group("idle")], "g, idle")]
)
def test_groups_without_an_offset_in_the_topics_are_an_error(groups: list[GroupOffsets], named: str) -> None:
    with pytest.raises(ResourceNotFoundError, match=rf"no group has an offset in the topics of the run r1 \({named}\)"):
        outcomes_of(ScriptedCluster(), *groups)
    assert outcomes_of(ScriptedCluster(), *groups, away="why") == [("away", "not_movable", None, None, "why")]


def test_groups_of_a_cluster_are_those_without_members() -> None:
    cluster = ScriptedCluster({
        "active": LiveGroup("classic", has_members=True), "shared": LiveGroup("other", has_members=True),
        "idle": LiveGroup("consumer", has_members=False), "elsewhere": LiveGroup("classic", has_members=True),
    })  # fmt: skip
    cluster.offsets["active"] = {("orders", 0): GroupCommit(11)}
    cluster.offsets["elsewhere"] = {("payments", 0): GroupCommit(3)}
    cluster.offsets["idle"] = {("orders", 0): GroupCommit(12, "m", 7), ("orders", 5): GroupCommit(1)}
    found = groups_of_cluster(cluster, a_map(), [])
    assert found.groups == [GroupOffsets("idle", "consumer", (CommittedOffset("orders", 0, 12, "m"),))]
    assert found.left.keys() == {"active", "shared"}
    assert groups_of_cluster(cluster, a_map(), ["sh*"]).left.keys() == {"shared"}
    with pytest.raises(ResourceNotFoundError, match="no offsets of a group 'idl'"):
        groups_of_cluster(cluster, a_map(), ["idl"])


def test_a_group_whose_offsets_cannot_be_read_does_not_stop_the_others() -> None:
    idle = LiveGroup("classic", has_members=False)
    cluster = ScriptedCluster({"denied": idle, "idle": idle}, unreadable="denied")
    cluster.offsets["idle"] = {("orders", 0): GroupCommit(12)}
    found = groups_of_cluster(cluster, a_map(), [])
    assert found.groups == [GroupOffsets("idle", "classic", (CommittedOffset("orders", 0, 12, ""),))]
    assert found.left == {"denied": "the offsets of denied cannot be looked up"}


def test_a_group_whose_offsets_may_be_read_later_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code says to try again, and a cluster that no longer answers does not take a timeout for each group."""
    cluster = ScriptedCluster({name: LiveGroup("classic", has_members=False) for name in ("one", "two")})
    asked: list[str] = []

    def fail(group: str, _: object) -> dict[TopicPartition, GroupCommit]:
        asked.append(group)
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr(cluster, "commits", fail)
    with pytest.raises(BrokerUnavailableError):
        groups_of_cluster(cluster, a_map(), [])
    assert asked == ["one"]


def test_groups_of_a_snapshot_are_chosen_by_name_and_glob() -> None:
    held = (group("a", ("orders", 0, 1, "")), group("b*", ("orders", 0, 2, "")), group("bc"))
    not_held = (NotHeld("group", "shared", "it is a share group"), NotHeld("acls", "", "denied"))
    source = groups_of_snapshot(ClusterSnapshot("c1", 0, groups=held, not_held=not_held))
    assert source.left == {"shared": "it is a share group"}
    assert source.choose([]) == SourceGroups(list(held), source.left)
    assert source.choose(["b*"]) == SourceGroups([held[1], held[2]])
    assert source.choose(["a", "shared"]) == SourceGroups([held[0]], source.left)
    with pytest.raises(ResourceNotFoundError, match="no offsets of a group 'c'"):
        source.choose(["a", "c"])


def test_a_file_has_offsets_with_and_without_metadata(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text('{"g": {"orders": {"0": 5, "10": {"offset": 7, "metadata": "m"}}}, "f": {}}')
    assert groups_of_file(path).groups == [group("f"), group("g", ("orders", 0, 5, ""), ("orders", 10, 7, "m"))]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "EOF"), ("[]", "an object"), ('{"g": 5}', "g"), ('{"g": {"orders": {"x": 5}}}', "its g.orders.x"),
        ('{"g": {"orders": {"0": -1}}}', "g.orders.0"), ('{"g": {"orders": {"0": "5"}}}', "g.orders.0"),
        ('{"g": {"orders": {"0": {"offset": 1, "leader_epoch": 1}}}}', "leader_epoch"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_fault(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=fault) as error:
        groups_of_file(path)
    assert str(error.value).startswith(f"{path} does not have groups as ")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        groups_of_file(tmp_path / "none")
