"""The commands of the documents' pages, run one after the other as they are shown, on a small bucket of their topics.

Those of the README are run in tests/project/test_docs.py.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.project.test_docs import DOCUMENTS, blocks, name_of
from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.paths import REPOSITORY
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.segments import build_segment

ELSEWHERE = ("s3://", "gs://", "az://", "--kms", "broker")
"""What a command says that needs more than a folder."""

PARTITIONS = [*(("orders", number) for number in (0, 4, 5, 6, 7)), ("events", 3)]
FIRST_OFFSET = 249_950  # a little before the one up to which the pages remove
JANUARY_MS, FEBRUARY_MS = 1_767_225_600_000, 1_769_904_000_000


def commands_of(path: Path) -> list[str]:
    lines = [line for block in blocks(path, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ tieredstore ")]


PAGES = [path for path in DOCUMENTS if commands_of(path) and path != REPOSITORY / "README.md"]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a settings file, a store of the documents' topics, and the log directory that it came from."""
    folder = tmp_path_factory.mktemp("documents")
    settings = write_settings(folder, {"compression.enabled": "true"})
    shutil.copy(REPOSITORY / "examples" / "prices.toml", folder)
    (folder / "backup").mkdir()
    for topic, partition in PARTITIONS:
        where, offset = TopicIdPartition(Uuid(topic.encode().ljust(16, b".")), topic, partition), FIRST_OFFSET
        for time_ms in (JANUARY_MS, FEBRUARY_MS, FEBRUARY_MS + 1):
            segment = build_segment(
                folder / "kafka-logs", 30_000, partition=where, base_offset=offset, first_timestamp_ms=time_ms
            )
            offset = segment.to_metadata(Uuid.random()).end_offset + 1
    assert tieredstore("upload", "-c", settings, folder / "kafka-logs").code == 0
    return folder


def here(command: str, folder: Path) -> list[str]:
    """The words of a command, with what there is in the place of what it leaves open."""
    if "ID" in command:
        id_of_first = tieredstore("ls", "-c", "store.properties", "orders", "-p", "all", "--json").rows[0][0][
            "segment_id"
        ]
        command = command.replace("ID", id_of_first)
    places = {
        "SETTINGS": "store.properties",
        "TOPIC": "orders",
        "PARTITION": "0",
        "BASE_OFFSET": str(FIRST_OFFSET),
        "BATCH": str(next((REPOSITORY / "tests/pubsub/golden/batches").glob("v02*"))),
        "/etc/tieredstore/keys": str(folder / "keys"),
    }
    return [places.get(word, word) for word in shlex.split(command)[1:]]


@pytest.fixture
def copied(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the bucket of one's own, as the working directory."""
    folder = tmp_path / "documents"
    shutil.copytree(bucket, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_commands_of_a_page_run_in_their_order(path: Path, copied: Path) -> None:
    for command in commands_of(path):
        if any(words in command for words in ELSEWHERE):
            continue
        done = tieredstore(*here(command, copied))
        assert (done.code, "Traceback" in done.stderr) == (0, False), (command, done.stderr)
