"""Log queries built from the options, and errors of the logs that name the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tieredstore.errors import ConfigError, DataLossError, TieredStoreError
from tieredstore.model import AtTime, Earliest, Places, Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.query import LogQuery
from tieredstore.reading.windows import PlaceLookup
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.tasks import query_of

OPTIONS: Mapping[str, str] = {"subscribe": "t", "storage.backend.class": "filesystem", "storage.root": "/nowhere"}


def query(**options: str) -> LogQuery:
    return query_of(parse_options({**OPTIONS, **options}, streaming=False))


def test_the_options_become_a_query() -> None:
    assert replace(query(), words=LogQuery(Subscribe(())).words) == LogQuery(Subscribe(("t",)))
    topic_id = Uuid(bytes(range(16)))
    live = {
        "kafka.bootstrap.servers": "b:1",
        "kafka.default.api.timeout.ms": "1500",
        "isolationLevel": "read_uncommitted",
    }
    chosen = query(topicIds=f'{{"t": "{topic_id}"}}', failOnDataLoss="false", **live)
    assert (chosen.isolation, chosen.on_data_loss, chosen.timeout_s) == ("read_uncommitted", "report", 1.5)
    assert chosen.topic_ids == {"t": topic_id}
    assert chosen.client == {"bootstrap.servers": "b:1", "default.api.timeout.ms": "1500"}


def snapshot() -> LogSnapshot:
    logs = [PartitionLog("t", n, Uuid(bytes(16)), None, seam=0, earliest=0, end=5) for n in range(2)]
    return LogSnapshot({log.where: log for log in logs})


def lookup(query: LogQuery) -> PlaceLookup:
    return PlaceLookup(snapshot(), query, lambda *_: None)


BEYOND: Places = {("t", 0): 21, ("t", 1): 5}


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (
            lambda q: lookup(q).find_starts(BEYOND),
            DataLossError,
            "^the options start t-0 .*set failOnDataLoss to false",
        ),
        (
            lambda q: lookup(q).find_starts(AtTime(1)),
            ConfigError,
            "set startingOffsetsByTimestampStrategy to latest",
        ),
        (
            lambda q: lookup(q).find_starts({("t", 0): 1}),
            ConfigError,
            "the option startingOffsets leaves out t-1: name all partitions",
        ),
        (
            lambda q: lookup(q).find_starts({("t", 0): AtTime(100)}),
            ConfigError,
            "the option startingOffsetsByTimestamp leaves out t-1: name all partitions",
        ),
        (
            lambda q: lookup(q).find_ends({("t", 0): 1, ("t", 1): 1, ("u", 7): 1}),
            ConfigError,
            "the option endingOffsets names u-7: there is no such partition",
        ),
        (
            lambda q: lookup(q).find_ends({("t", 0): AtTime(1), ("t", 1): AtTime(1), ("u", 7): AtTime(1)}),
            ConfigError,
            "the option endingOffsetsByTimestamp names u-7: there is no such partition",
        ),
    ],
)
def test_errors_name_the_options(ask: Callable[[LogQuery], Any], kind: type[TieredStoreError], words: str) -> None:
    with pytest.raises(kind, match=words):
        ask(query())


def test_no_words_are_needed_where_nothing_is_wrong() -> None:
    assert lookup(query()).find_starts(Earliest()) == {("t", 0): 0, ("t", 1): 0}
