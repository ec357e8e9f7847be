"""A hostile Avro message cannot kill a reader of its topic: each way to read is tested in a process with limits.

tests/values/test_hostile_schemas.py tests all hostile messages. Spark's source, and ``cat`` without ``-o``, return
bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli.cli_process import environment
from tests.support.damage.hostile_schemas import GOOD, READER, SCHEMAS
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService, framed
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.model import TopicIdPartition
from tieredstore.testing.segments import Record, build_batch
from tieredstore.values import ReferringSchema

pytestmark = pytest.mark.slow

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""
COMMAND = """
from tieredstore.cli.app.entry import run
run()
"""
LIBRARIES = """
import json
import duckdb
from tieredstore.config import load_settings
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tests.support.records.topic_reads import read_topic
from tieredstore.remote import RemoteStorageManager
from tieredstore.schema_registry import SchemaRegistry
from tieredstore.values import Avro

settings, url, schema = sys.argv[1:]
value = Avro(schema, SchemaRegistry(url), "null")
with RemoteStorageManager(load_settings(settings)) as manager:
    with read_topic(manager, "orders", columns=["value"], value=value) as read:
        print(json.dumps([row["value"] for batch in read for row in batch.to_pylist()]))
    print(json.dumps(scan(manager, "orders", value=value).collect()["value"].to_list()))
    connection = duckdb.connect()
    with attach(connection, manager, value=value):
        print(json.dumps([row[0] for row in connection.execute("SELECT value FROM orders").fetchall()]))
"""


@dataclass(frozen=True)
class Hostile:
    """A topic in which only the first and last messages match its schema."""

    root: Path
    settings: Path
    registry: str
    messages: int

    @property
    def rows(self) -> list[object]:
        """Return the expected values."""
        return [{"id": 7}, *[None] * (self.messages - 2), {"id": 7}]

    def run(self, code: str, *arguments: object) -> list[str]:
        """Return the lines that a process prints."""
        done = subprocess.run(
            [sys.executable, "-c", LIMITED + code, *map(str, arguments)],
            capture_output=True, env=environment(), check=False, timeout=300, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    folder = tmp_path_factory.mktemp("hostile")
    bucket, service = Bucket(folder), RegistryService()
    good = framed(service.register("orders-value", READER), GOOD)
    messages = [good]
    for case in SCHEMAS.values():
        schema = case.written_by()
        if not isinstance(schema, ReferringSchema):
            messages.append(framed(service.register("other", schema), case.data))
    messages += [framed(service.register("other", "{}", kind="JSON"), b"{}"), framed(9_999, b""), good]
    batches = [build_batch([Record(value)], at) for at, value in enumerate(messages)]
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), batches, range(len(messages)))
    settings = folder / "store.properties"
    settings.write_text(f"storage.backend.class=filesystem\nstorage.root={bucket.root}\nchunk.size=65536\n")
    with serving(service):
        yield Hostile(bucket.root, settings, service.url, len(messages))
    bucket.close()


def test_the_command_line_reads_what_is_around_it(topic: Hostile, tmp_path: Path) -> None:
    store, avro = ("--store", topic.root.as_uri()), ("--value", "avro", "--registry", topic.registry)
    sql = 'SELECT value FROM orders ORDER BY "offset"'
    lines = topic.run(COMMAND, "query", *store, sql, *avro, "--invalid", "null", "--json")
    assert [json.loads(line)["value"] for line in lines] == topic.rows
    out = tmp_path / "orders.jsonl"
    topic.run(COMMAND, "cat", *store, "orders", "-o", out, *avro, "--invalid", "null")
    assert [json.loads(line)["value"] for line in out.read_text().splitlines()] == topic.rows
    assert len(topic.run(COMMAND, "cat", *store, "orders", "--format", r"%o\n")) == topic.messages


def test_libraries_read_what_is_around_it(topic: Hostile) -> None:
    for line in topic.run(LIBRARIES, topic.settings, topic.registry, json.dumps(READER)):
        assert json.loads(line) == topic.rows
