"""Groups on a store: shares, take-overs after a death, and commits that come too late."""

from __future__ import annotations

import pytest

from tests.support.pubsub_topics import topics_on
from tests.support.simulated_time import SimulatedClock
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, CorruptData, Fenced, StoreUnavailable
from tieredstore.pubsub.groups import StoreGroup, list_group, list_groups
from tieredstore.pubsub.queues import Position
from tieredstore.testing.doubles import CountingStore
from tieredstore.testing.faults import FaultyStore

PARTITIONS = 4


class Members:
    """Members of one group on one clock, which a test moves; their own threads' beats never come."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.clock = SimulatedClock()

    def join(self, store: ObjectStore | None = None) -> StoreGroup:
        folder = topics_on(store or self.store).folder
        return StoreGroup(folder, "readers", "orders", lambda: PARTITIONS, monotonic=lambda: self.clock.now)

    def pass_time(self, seconds: float, *living: StoreGroup) -> None:
        """Let the living beat and tick every five seconds."""
        for _ in range(round(seconds / 5)):
            self.clock.sleep(5.0)
            for member in living:
                member.tick()
                member.beat()


@pytest.fixture
def members() -> Members:
    return Members(MemoryObjectStore())


def owned_by(*members: StoreGroup) -> list[list[int]]:
    return [sorted(member.owned()) for member in members]


def test_one_member_has_all_and_two_share(members: Members) -> None:
    first = members.join()
    first.tick()
    assert owned_by(first) == [[0, 1, 2, 3]]
    second = members.join()
    members.pass_time(20, first, second)
    assert sorted([*first.owned(), *second.owned()]) == [0, 1, 2, 3]
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
    assert second.owned() == {0: Position(256, 1, 2), 1: None, 2: None, 3: Position(5)}
    second.leave()


def test_a_dead_members_partitions_are_taken_and_its_late_commit_is_fenced(members: Members) -> None:
    dead, heir = members.join(), members.join()
    dead.tick()
    members.clock.sleep(1)
    heir.tick()
    members.pass_time(10, heir)
    assert len(heir.owned()) < PARTITIONS  # it may only be slow
    members.pass_time(15, heir)
    assert owned_by(heir) == [[0, 1, 2, 3]]
    with pytest.raises(Fenced, match="another member of group readers"):
        dead.commit(dict.fromkeys(dead.owned(), Position(1)))
    states = list_group(heir._folder, "readers", "orders", PARTITIONS)  # pyright: ignore[reportPrivateUsage]
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
    with pytest.raises(StoreUnavailable):
        member.commit({0: Position(1)})
    store.fail_at = None
    member.commit({0: Position(1)})
    member.commit({0: Position(2)})
    assert member.owned()[0] == Position(2)
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
    assert list_groups(folder, "orders") == ["readers"]
    assert list_groups(folder, "other") == []
    member.leave()
    assert [state.owner for state in list_group(folder, "readers", "orders", PARTITIONS)] == [None] * PARTITIONS


def test_names_and_damage(members: Members) -> None:
    folder = topics_on(members.store).folder
    with pytest.raises(ConfigError, match="cannot name a group"):
        StoreGroup(folder, "a/b", "orders", lambda: 1)
    members.store.put(folder.key("groups", "readers", "orders", "partitions", "0"), b'{"owner":1,"generation":0}')
    with pytest.raises(CorruptData, match="owner is 1"):
        list_group(folder, "readers", "orders", 1)
