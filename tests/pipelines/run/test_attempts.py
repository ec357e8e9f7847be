"""Two attempts of one window at once, as of a task that Spark speculates on: the other one is seen by nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, listed_offsets, pipeline_of
from tests.support.records.stored_records import StoredTopic
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_s3
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.base import ObjectStore, find_abandoned_writes
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.driver import Driver
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.selection import query_of
from tieredstore.pipelines.run.stores import COLUMNS
from tieredstore.pipelines.run.window_writing import Written, write_window
from tieredstore.pipelines.upkeep.inspection import verify_output
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.survey import survey_logs
from tieredstore.records.settings import ReadSettings

PIPELINE = pipeline_of(max__file__records="100")
"""A window of 300 records is three files."""
WAIT_S = 60


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.server])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    match request.param:
        case "memory":
            opened: ObjectStore = MemoryObjectStore()
        case "folder":
            (tmp_path / "output").mkdir()
            opened = FilesystemObjectStore(tmp_path / "output")
        case _:
            server: S3Server = request.getfixturevalue("minio")
            opened = make_s3(server.endpoint_url, server.make_bucket())
    yield opened
    opened.close()


def attempts_of(topic: StoredTopic, store: ObjectStore) -> list[Written]:
    """Both of a window of all records."""
    query = query_of(PIPELINE)
    log = survey_logs(topic.manager, query).logs[TOPIC, NUMBER]
    window = Window(TOPIC, str(log.topic_id), NUMBER, log.earliest, log.end)

    def attempt(to: ObjectStore) -> Written:
        with TopicReader(lambda: topic.manager, query, ReadSettings(columns=COLUMNS)) as reader:
            return write_window(window, reader.read(log, window.start, window.stop), recipe_of(PIPELINE), to)

    # Neither goes on with a file before the other one has prepared one too.
    both = threading.Barrier(2, timeout=WAIT_S)
    meeting = ScriptedStore(store).on("prepare", do=lambda _: both.wait(), moment="after")
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(attempt, [meeting] * 2))


@pytest.mark.parametrize("chosen", [0, 1])
def test_one_is_committed_and_nothing_of_the_other_is_seen(topic: StoredTopic, store: ObjectStore, chosen: int) -> None:
    attempts = attempts_of(topic, store)
    keys = [file.key for file in attempts[0][0].files]
    assert [file.key for file in attempts[1][0].files] == keys
    assert len(keys) == 3
    assert listed(store) == []
    nothing_again: Any = None
    driver = Driver(Generation(PIPELINE, store), nothing_again)
    driver.begin([TOPIC])
    driver.commit([attempts[chosen]])
    assert listed(store) == keys
    assert listed_offsets(store) == list(range(300))
    # What whoever cleans up takes away, or a life-cycle rule, is none of what is seen.
    assert [store.discard(file.prepared) for file in attempts[1 - chosen][0].files] == [True] * 3
    assert list(find_abandoned_writes(store)) == []
    assert listed_offsets(store) == list(range(300))
    assert list(verify_output(PIPELINE, store)) == []
