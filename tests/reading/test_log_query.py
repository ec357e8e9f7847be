"""Tests of the query: processes can send it to each other, and it shows no secrets."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any, cast

import pytest

from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.partitions.selections import (
    Assign,
    Subscribe,
    SubscribePattern,
    is_selected,
    named_topics,
    select_topics,
)
from tieredstore.reading.query import LogQuery
from tieredstore.reading.split_reads import open_reader

CLIENT = {"bootstrap.servers": "broker:9092", "sasl.password": "hidden"}
QUERY = LogQuery(Subscribe(("orders",)), topic_ids={"orders": Uuid(bytes(16))}, client=CLIENT)


def test_a_query_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(QUERY)) == QUERY


def test_equal_ones_have_one_hash_and_others_are_not_equal() -> None:
    assert {QUERY, LogQuery(QUERY.selection, topic_ids=dict(QUERY.topic_ids), client=dict(CLIENT))} == {QUERY}
    assert LogQuery(QUERY.selection, client=CLIENT) != LogQuery(QUERY.selection)
    assert LogQuery(Subscribe(("a",))) != LogQuery(Assign((("a", 0),)))


def test_a_query_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        cast("Any", QUERY).isolation = "read_uncommitted"


def test_the_repr_of_a_query_shows_no_property_of_the_client() -> None:
    assert "hidden" not in repr(QUERY)


@pytest.mark.parametrize("wrong", [{"isolation": "serializable"}, {"on_data_loss": "ignore"}])
def test_what_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=f"{name} is '{value}'; it must be .* or "):
        LogQuery(QUERY.selection, **wrong)


def test_without_client_properties_there_is_no_broker_to_read_from() -> None:
    assert LogQuery(QUERY.selection).open_cluster() is None
    with pytest.raises(ConfigError, match="has no client properties"):
        open_reader(LogQuery(QUERY.selection))


def test_selections() -> None:
    topics, pattern, assigned = Subscribe(("b", "a", "b")), SubscribePattern("a|b.*"), Assign((("b", 1), ("b", 2)))
    assert [named_topics(selection) for selection in (topics, pattern, assigned)] == [["a", "b"], None, ["b"]]
    known = ["c", "bb", "b", "a", "aa"]
    chosen = [select_topics(selection, known) for selection in (topics, pattern, assigned)]
    assert chosen == [["a", "b"], ["a", "b", "bb"], ["b"]]
    for selection, inside, outside in (
        (topics, [("a", 0), ("b", 7)], [("bb", 0)]),
        (pattern, [("a", 0), ("bb", 7)], [("aa", 0)]),
        (assigned, [("b", 1)], [("b", 0), ("a", 1)]),
    ):
        assert all(is_selected(selection, where) for where in inside)
        assert not any(is_selected(selection, where) for where in outside)
