"""What a process of ``pipeline`` that cannot go on ends with, and what it says then."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cli.cli_process import spawn, tieredstore
from tests.support.pipelines.pipeline_runs import listed
from tests.support.servers.process import free_port
from tests.support.spark.spark_pipelines import TOPIC, Kept
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.stores import open_parts
from tieredstore.pipelines.transforming import Message
from tieredstore.pipelines.upkeep.inspection import verify_output

FILE = "EXIT_CODES_FILE"
"""In a process's environment: the pipeline's file of settings."""


def taken_over(message: Message) -> Message:
    """While the first record is on its way another driver begins, where it is told of the pipeline."""
    if message.offset == 0 and FILE in os.environ:
        pipeline = load_pipeline(Path(os.environ[FILE]))
        with open_parts(pipeline) as parts:
            log = commit_log_of(pipeline, parts.store)
            log.read()
            log.append("begin", "another")
    return message


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with closing(Kept(tmp_path)) as kept:
        kept.write(12, partitions=(0,))
        yield kept


def test_too_many_bad_messages_are_4_and_nothing_of_them_appears(kept: Kept) -> None:
    file = kept.file(secor__message__parser__class="json", secor__consumer__max_bad_messages="7")
    done = spawn("pipeline", "run", "--once", file)
    assert done.code == 4, done
    assert re.search(r"12 messages of a batch are bad.*max_bad_messages is 7.*orders-0 at 0", done.stderr)
    assert listed(kept.store) == []


@pytest.mark.parametrize("verb", ["run", "backfill"])
def test_another_process_that_takes_over_is_5_and_what_it_left_is_written_by_the_next(kept: Kept, verb: str) -> None:
    generation = "1" if verb == "run" else "7"
    file = kept.file(
        secor__message__transformer__class=f"{taken_over.__module__}:{taken_over.__name__}",
        secor__generation=generation,
    )
    last = ("--once", file) if verb == "run" else (file, "--topic", TOPIC, "--generation", generation)
    done = spawn("pipeline", verb, *last, **{FILE: str(file)})
    assert done.code == 5, done
    assert "another process has written entry" in done.stderr
    assert listed(kept.store) == []
    assert [write.key for write in kept.store.abandoned_writes()] == []
    assert tieredstore("pipeline", verb, *last).code == 0
    assert kept.offsets() == {(TOPIC, 0): list(range(12))}
    assert list(verify_output(load_pipeline(file), kept.store)) == []


def test_a_store_that_is_away_is_75(kept: Kept) -> None:
    store = {
        "output__storage__root": "", "output__storage__backend__class": "s3",
        "output__storage__s3__bucket__name": "kept", "output__storage__s3__region": "nowhere",
        "output__storage__s3__path__style__access__enabled": "true",
        "output__storage__s3__endpoint__url": f"http://127.0.0.1:{free_port()}",
        "output__storage__aws__access__key__id": "id", "output__storage__aws__secret__access__key": "hunter2",
    }  # fmt: skip
    file = kept.file(**store)
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if not line.endswith("=\n")))
    done = spawn("pipeline", "run", "--once", file)
    assert done.code == 75, done
    assert "hunter2" not in done.stderr
