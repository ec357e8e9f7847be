"""Groups on a store: shares, takeovers after a death, and late commits."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import CountingStore, FaultyStore, Moment, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    FencedError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from tieredstore.pubsub.queue.groups import StoreGroup, list_groups
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.queue.queues import Position

PARTITIONS = 4


class Members:
    """Members of one group on a clock that the test moves. Their own threads send no heartbeats."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.clock = SimulatedClock()

    @property
    def folder(self) -> OwnFolder:
        return topics_on(self.store).folder

    def join(self, store: ObjectStore | None = None) -> StoreGroup:
        folder = topics_on(store or self.store).folder
        return StoreGroup(folder, "readers", "orders", lambda: PARTITIONS, monotonic=self.clock)

    def pass_time(self, seconds: float, *living: StoreGroup) -> None:
        """Let time pass. Every five seconds, the ``living`` members tick and send a heartbeat."""
        for _ in range(round(seconds / 5)):
            self.clock.sleep(5.0)
            for member in living:
                member.tick()
                member.beat()


@pytest.fixture
def members() -> Members:
    return Members(MemoryObjectStore())


def owned_by(*members: StoreGroup) -> list[list[int]]:
    return [sorted(member.claims()) for member in members]


def committed_by(*members: StoreGroup) -> dict[int, Position | None]:
    return {number: claim.committed for member in members for number, claim in member.claims().items()}


def test_one_member_has_all_and_two_share(members: Members) -> None:
    first = members.join()
    first.tick()
    assert owned_by(first) == [[0, 1, 2, 3]]
    second = members.join()
    members.pass_time(20, first, second)
    assert sorted([*first.claims(), *second.claims()]) == [0, 1, 2, 3]
    assert [len(owned) for owned in owned_by(first, second)] == [2, 2]
    second.leave()
    members.pass_time(20, first)
    assert owned_by(first) == [[0, 1, 2, 3]]
    first.leave()


def test_who_comes_next_goes_on_at_the_commit(members: Members) -> None:
    first = members.join()
    first.tick()
    first.commit({0: Position(256, 1, 2), 3: Position(5)})
    first.leave()
    second = members.join()
    second.tick()
    assert committed_by(second) == {0: Position(256, 1, 2), 1: None, 2: None, 3: Position(5)}
    second.leave()


def test_a_dead_members_partitions_are_taken_and_its_late_commit_is_fenced(members: Members) -> None:
    dead, heir = members.join(), members.join()
    dead.tick()
    members.clock.sleep(1)
    heir.tick()
    members.pass_time(10, heir)
    assert len(heir.claims()) < PARTITIONS  # the other member may only be slow
    members.pass_time(15, heir)
    assert owned_by(heir) == [[0, 1, 2, 3]]
    with pytest.raises(FencedError, match="another member of group readers"):
        dead.commit(dict.fromkeys(dead.claims(), Position(1)))
    states = list_groups(heir._folder, "orders", PARTITIONS)["readers"]  # pyright: ignore[reportPrivateUsage]
    assert {state.owner for state in states} == {heir.member}
    assert all(state.position is None for state in states)
    heir.leave()
    dead.leave()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_made_again(moment: str, members: Members) -> None:
    store = FaultyStore(members.store, moment=moment)  # type: ignore[arg-type]
    member = members.join(store)
    member.tick()
    store.fail_at = len(store.operations)
    with pytest.raises(StoreUnavailableError):
        member.commit({0: Position(1)})
    store.fail_at = None
    member.commit({0: Position(1)})
    member.commit({0: Position(2)})
    assert committed_by(member)[0] == Position(2)
    member.leave()


def test_a_commit_of_what_is_committed_costs_nothing(members: Members) -> None:
    store = CountingStore(members.store)
    member = members.join(store)
    member.tick()
    store.reset()
    member.commit({0: Position(1)})
    member.commit({0: Position(1)})
    assert len(store.keys_of("replace")) == 1
    member.leave()


def test_groups_are_listed(members: Members) -> None:
    member = members.join()
    member.tick()
    folder = topics_on(members.store).folder
    assert list(list_groups(folder, "orders", PARTITIONS)) == ["readers"]
    assert list_groups(folder, "other", PARTITIONS) == {}
    member.leave()
    assert [state.owner for state in list_groups(folder, "orders", PARTITIONS)["readers"]] == [None] * PARTITIONS


def test_names_and_damage(members: Members) -> None:
    folder = topics_on(members.store).folder
    with pytest.raises(ConfigError, match="invalid group name"):
        StoreGroup(folder, "a/b", "orders", lambda: 1)
    members.store.put(
        folder.key("groups", "readers", "orders", "partitions", "0"), b'{"version":1,"owner":1,"generation":0}'
    )
    with pytest.raises(CorruptDataError, match="owner is 1"):
        list_groups(folder, "orders", 1)


def test_members_that_nobody_heard_of_for_long_are_members_again() -> None:
    inner = MemoryObjectStore()
    is_away = False
    store = FaultyStore(inner, fail_at=lambda _: is_away)
    members = Members(store)
    first, second = members.join(), members.join()
    first.tick()
    members.pass_time(20, first, second)
    is_away = True
    members.clock.sleep(400)  # this is long enough for the silent member's object to be deleted
    is_away = False
    members.clock.sleep(5)
    first.tick()
    for _ in range(3):
        for member in (first, second):
            with contextlib.suppress(PreconditionFailedError):
                member.beat()
    members.pass_time(20, first, second)
    assert [len(owned) for owned in owned_by(first, second)] == [2, 2]
    assert sorted([*first.claims(), *second.claims()]) == [0, 1, 2, 3]
    first.leave()
    second.leave()
    assert not list(inner.list(members.folder.key("groups", "readers", "orders", "members", "")))


def test_a_member_that_slept_knows_what_it_has_lost_before_it_commits(members: Members) -> None:
    sleeper, heir = members.join(), members.join()
    sleeper.tick()
    members.pass_time(25, heir)
    assert owned_by(heir) == [[0, 1, 2, 3]]
    heir.commit({0: Position(7)})
    sleeper.tick()
    assert owned_by(sleeper) == [[]]
    members.pass_time(20, sleeper, heir)
    assert sorted([*sleeper.claims(), *heir.claims()]) == [0, 1, 2, 3]
    assert committed_by(sleeper, heir)[0] == Position(7)
    sleeper.leave()
    heir.leave()


def test_a_member_that_was_cut_off_from_the_store_knows_what_it_has_lost(members: Members) -> None:
    is_away = False
    cut_off, heir = members.join(FaultyStore(members.store, fail_at=lambda _: is_away)), members.join()
    cut_off.tick()
    is_away = True
    for _ in range(6):
        members.pass_time(5, heir)
        with pytest.raises(StoreUnavailableError):
            cut_off.tick()
    is_away = False
    members.clock.sleep(5)
    cut_off.tick()
    assert owned_by(cut_off, heir) == [[], [0, 1, 2, 3]]
    cut_off.leave()
    heir.leave()


def test_a_member_that_slept_asks_again_if_its_store_was_away(members: Members) -> None:
    store = ScriptedStore(members.store)
    sleeper, heir = members.join(store), members.join()
    sleeper.tick()
    members.pass_time(25, heir)
    store.on("head", "*/partitions/*", StoreUnavailableError("away"), times=1)
    with pytest.raises(StoreUnavailableError):
        sleeper.tick()
    sleeper.tick()
    assert owned_by(sleeper) == [[]]
    sleeper.leave()
    heir.leave()


def test_a_member_that_slept_and_lost_nothing_goes_on(members: Members) -> None:
    alone = members.join()
    alone.tick()
    alone.commit({1: Position(3)})
    members.clock.sleep(100)
    alone.tick()
    alone.commit({1: Position(4)})
    assert committed_by(alone) == {0: None, 1: Position(4), 2: None, 3: None}
    alone.leave()


def test_a_member_whose_joining_was_not_answered_joins(members: Members) -> None:
    store = FaultyStore(members.store, fail_at=0, moment="after")
    member = members.join(store)
    with pytest.raises(StoreUnavailableError):
        member.tick()
    member.tick()
    assert owned_by(member) == [[0, 1, 2, 3]]
    member.leave()


def fail_to_give_up(members: Members, moment: Moment) -> tuple[StoreGroup, StoreGroup]:
    """Return a first member whose write to give up a partition fails, and the second member."""
    store = ScriptedStore(members.store)
    first, second = members.join(store), members.join()
    first.tick()
    second.tick()
    store.on("replace", "*/partitions/*", StoreUnavailableError("away"), moment=moment, times=1)
    members.clock.sleep(5)
    with pytest.raises(StoreUnavailableError):
        first.tick()
    return first, second


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_partition_that_could_not_be_given_up_is_given_up_later(moment: Moment, members: Members) -> None:
    first, second = fail_to_give_up(members, moment)
    assert len(first.claims()) == PARTITIONS - 1  # another member may own the partition now
    members.pass_time(20, first, second)
    assert [len(owned) for owned in owned_by(first, second)] == [2, 2]
    assert sorted([*first.claims(), *second.claims()]) == [0, 1, 2, 3]
    first.leave()
    second.leave()


def test_a_partition_that_was_taken_without_an_answer_is_given_up(members: Members) -> None:
    store = ScriptedStore(members.store)
    store.on("put", "*/partitions/0", StoreUnavailableError("away"), moment="after", times=1)
    first, second = members.join(store), members.join()
    first.member, second.member = "b", "a"  # the second member's share has partition 0
    with pytest.raises(StoreUnavailableError):
        first.tick()
    members.pass_time(20, second, first)
    assert owned_by(first, second) == [[1, 3], [0, 2]]
    first.leave()
    second.leave()


def test_a_partition_that_was_given_up_without_an_answer_is_taken_again(members: Members) -> None:
    first, second = fail_to_give_up(members, "after")
    second.leave()
    members.pass_time(10, first)
    first.commit(dict.fromkeys(range(PARTITIONS), Position(1)))
    first.leave()
