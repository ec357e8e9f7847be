"""Drivers that are killed (-9) at any instant: by plain listing no offset is twice, and none is missing in the end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.pipeline_runs import listed_offsets, pipeline_of, run_once
from tests.support.stored_records import StoredTopic
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines.inspection import verify_output

pytestmark = pytest.mark.slow


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
        time.sleep(dice.uniform(0.0, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen = listed_offsets(store)
        assert len(seen) == len(set(seen))
        topic.copy_plain(offsets, 50, size=100)
        offsets += 50
    # What the last one committed is rewritten by its own settings alone: the store has dropped nothing here.
    run_once(topic, store, pipeline_of())
    assert listed_offsets(store) == list(range(offsets))
    assert list(verify_output(pipeline_of(), store)) == []
