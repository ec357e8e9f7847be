"""Names, positions and offsets of runs in the control topic."""

from __future__ import annotations

from typing import Any

import pytest

from tieredstore.errors import ConfigError, CorruptDataError, NewerVersionError
from tieredstore.restore.produce.runs import (
    OffsetRun,
    ProduceOptions,
    RunPosition,
    SourceRange,
    offsets_from_bytes,
    offsets_to_bytes,
)

POSITION = RunPosition(
    topics={"orders": "new"}, topic_ids={"orders": "AAAAAAAAAAAAAAAAAAAAAA"}, partitioner="keep",
    sources={("orders", 0): SourceRange(2, 5, 9, ((6, 7), (8, 9))), ("orders", 1): SourceRange(0, 0, 0)},
    ends={("new", 0): 7, ("new", 1): 0}, records=4, offset_records=2, target_ids={"new": "AAAAAAAAAAAAAAAAAAAAAQ"},
)  # fmt: skip


def test_a_position_is_read_as_it_was_written() -> None:
    assert RunPosition.from_bytes(POSITION.to_bytes(), "it") == POSITION
    assert not POSITION.is_produced
    assert not POSITION.is_finished


def test_offsets_are_read_as_they_were_written() -> None:
    runs = [OffsetRun("orders", 0, 5, 0, 7, 3), OffsetRun("orders", 1, 2**40, 1, 2**41, 1)]
    assert offsets_from_bytes(offsets_to_bytes(runs), "it") == runs


@pytest.mark.parametrize("raw", [None, b"", b"{}", b'{"version":1}', b'{"version":1,"runs":[[1]]}', b"\xff" * 80])
def test_other_bytes_are_named(raw: bytes | None) -> None:
    with pytest.raises(CorruptDataError, match=r"^it is not a valid position of a restore"):
        RunPosition.from_bytes(raw, "it")
    with pytest.raises(CorruptDataError, match=r"^it is not a valid list of restored offsets"):
        offsets_from_bytes(raw, "it")


def test_positions_of_a_later_release_are_refused() -> None:
    with pytest.raises(NewerVersionError):
        RunPosition.from_bytes(b'{"version":2}', "it")


def test_a_run_is_named_after_its_topics() -> None:
    assert ProduceOptions(topics={"b": "c", "a": "a"}).run == "a,b=c"
    assert ProduceOptions(topics={"a": "a"}, name="friday").run == "friday"
    names = [ProduceOptions(topics={f"{'t' * 200}{number}": "x"}).run for number in (1, 2)]
    assert len({*names}) == 2
    assert all(len(name) == 150 for name in names)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topics": {}}, "no topic is named"),
        ({"topics": {"a": "c", "b": "c"}}, "two topics would be restored into c"),
        ({"topics": {"a": "a"}, "name": "a/b"}, "the run's name"),
        ({"topics": {"a": "a"}, "name": ""}, "the run's name"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ProduceOptions(**given)
