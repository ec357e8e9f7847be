"""Drivers that are killed (-9) at any instant.

All the time, by plain listing: no offset twice, none missing of what is published, none above what is committed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed_offsets, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output

pytestmark = pytest.mark.slow


def check_seen(store: ObjectStore) -> None:
    """What is published by now is looked up before the listing, and what is committed behind it."""
    published = published_end(store)
    seen = listed_offsets(store)
    assert len(seen) == len(set(seen))
    assert set(range(published)) <= set(seen)
    positions = commit_log_of(pipeline_of(), store).read().positions
    assert not seen or seen[-1] < positions[TOPIC, NUMBER].next_offset


def published_end(store: ObjectStore) -> int:
    """All batches are published but the last one perhaps; that one is by now if something was said behind it."""
    entries = list(commit_log_of(pipeline_of(), store).entries())
    batches = [entry for entry in entries if entry.kind == "batch"]
    is_last_done = bool(entries) and entries[-1].kind == "published"
    done = batches if is_last_done else batches[:-1]
    return done[-1].windows[-1].stop if done else 0


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.soak)])
def test_drivers_that_are_killed_leave_no_record_twice_and_none_out(
    topic: StoredTopic, tmp_path: Path, kills: int
) -> None:
    (tmp_path / "output").mkdir()
    store = FilesystemObjectStore(tmp_path / "output")
    dice = random.Random(18)
    offsets, sizes = 300, ("3000", "9000", "20000")
    for _ in range(kills):
        pipeline = pipeline_of(secor__max__file__size__bytes=dice.choice(sizes))
        child = os.fork()
        if child == 0:
            try:
                run_once(topic, store, pipeline)
            finally:
                os._exit(0)
        by = time.monotonic() + dice.uniform(0.0, 0.3)
        while time.monotonic() < by:
            check_seen(store)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check_seen(store)
        topic.copy_plain(offsets, 50, size=100)
        offsets += 50
    # What the last one committed is rewritten by its own settings alone: the store has dropped nothing here.
    run_once(topic, store, pipeline_of())
    assert listed_offsets(store) == list(range(offsets))
    assert list(verify_output(pipeline_of(), store)) == []
