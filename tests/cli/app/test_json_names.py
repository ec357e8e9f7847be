"""docs/reference/json.md lists every name that commands print as JSON, under the commands that print it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import tieredstore as ts
from tests.ops.snapshots.test_storing import FULL
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.cli.odd_bucket import make_it_odd
from tests.support.cli.screens import commands_below, demo_bucket
from tests.support.damage.planted_messages import store_messages
from tests.support.paths import REPOSITORY
from tests.support.pubsub.pubsub_brokers import message_of
from tests.support.reference.json_page import is_date, rows_of
from tieredstore.cli.app.entry import JSON_VERSION
from tieredstore.cli.app.main import program
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.pubsub import BatchProducer, open_topics
from tieredstore.restore.produce.offset_map import OffsetMapFile
from tieredstore.restore.produce.runs import OffsetRun

PAGE = (REPOSITORY / "docs" / "reference" / "json.md").read_text()
DOCUMENTED = [name for name, *_ in rows_of(PAGE)]
GOLDEN = REPOSITORY / "tests" / "cli" / "golden" / "json.txt"
"""Each command, and the names that it prints with their types; the source of docs/reference/json.md.

Regenerate it with ``python -m tests.cli.app.test_json_names``, then run `make docs`.
"""
LOG = "kafka/txn-0/00000000000000000605"
MEMQ = next((REPOSITORY / "tests/pubsub/golden/batches").glob("v02*"))

KEPT = "none/base_offset=0/1_1_00000000000000000000.parquet"
PRINTING = {
    "ls": ["ls", "ls -p all --first-times"],
    "upload": ["upload kafka --dry-run", "upload active --dry-run"],
    "inspect": ["inspect txn 0 605 --chunks"]
    + [f"inspect txn 0 605 --index {kind}" for kind in ("index", "timeindex", "snapshot", "leader-epoch", "txnindex")],
    "cat": ["cat none -p 1 -n 3"],
    "query": [],  # the query determines the names
    "keys list": ["keys list", "keys list key1"],
    "keys rotate": ["keys rotate"],
    "verify": ["verify"],
    "gc": ["gc"],
    "rm": ["rm txn"],
    "mirror": ["mirror ./backup --dry-run"],
    "du": ["du", "du --by day", "du --prices prices.toml"],
    "holds list": ["holds list"],
    "holds release": ["holds release case"],
    "doctor": ["doctor", "doctor --fix"],
    "pipeline run": ["pipeline run kept.properties --once"],
    "pipeline status": [
        f"pipeline status {file}.properties{more}"
        for file, more in (("kept", ""), ("replaced", ""), ("kept", " --after -1"))
    ],
    "pipeline verify": ["pipeline verify kept.properties --against bucket"],
    "show": [f"show {LOG}.log", f"show {LOG}.log --records"]
    + [f"show {LOG}.{suffix}" for suffix in ("index", "timeindex", "snapshot", "txnindex")]
    + [f"show {KEPT} -c kept.properties {options}" for options in ("-n 3", "--sources --backup kept.properties")]
    + [f"show {MEMQ}", f"show {MEMQ} --records"],
    "pubsub verify": ["pubsub verify holes --store ./batches --settle 0s"],
    "pipeline backfill": [
        *(f"pipeline backfill kept.properties none --generation {more}" for more in ("9 --yes", "8 --replace 1")),
        "pipeline backfill strict.properties --bad-messages",
        *(f"pipeline backfill {file}.properties --bad-messages --yes" for file in ("strict", "mended")),
    ],
    "pipeline finalize": ["pipeline finalize timed.properties"],
    "pipeline gc": ["pipeline gc kept.properties"],
    "pipeline rm": ["pipeline rm kept.properties"],
    "pubsub cat": ["pubsub cat events --group readers --store ./batches"],
    "pubsub topics": [f"pubsub topics events --store ./batches{more}" for more in ("", " --prices prices.toml")],
    "pubsub gc": ["pubsub gc events --store ./batches"],
    # The commands without lines need a cluster or a store with versions; see tests/restore.
    "restore logdir": [],
    "restore finish": [],
    "restore produce": [],
    "restore groups": [],
    "restore offsets": [f"restore offsets{more}" for more in ("", " r1", " r1 none 0", " r1 none 0 5")],
    "restore schemas": [],
    "restore snapshot": ["restore snapshot --list", "restore snapshot --show"],
    "restore undelete": [],
    "restore verify": [],
    "uploader": ["uploader --dry-run", "uploader --once"],
}
WITHOUT_SETTINGS = {command for command in PRINTING if command.startswith("pipeline ")} | {
    "show",
    "pubsub cat",
    "pubsub gc",
    "pubsub topics",
    "pubsub verify",
}
SELDOM = {
    "fault", "output_key", "problem", "path", "broker_earliest_offset", "broker_end_offset", "complete_until",
    "complete_up_to", "complete_up_to_ms", "why_missing", "not_stored", "committed_offset", "read_again",
}  # fmt: skip
"""Names that the lines above never print, because the demo's bucket has no such data and no broker is asked."""


Printed = dict[str, dict[str, set[str]]]
"""The names that each command prints, with the types of their values."""


@pytest.fixture(scope="module")
def printed() -> Iterator[Printed]:
    with printing_bucket() as names:
        yield names


@contextlib.contextmanager
def printing_bucket() -> Generator[Printed]:
    """Yield the names that each command prints."""
    with demo_bucket() as folder:
        _make_it_odd(folder)
        with (folder / "kept.properties").open("a") as kept:
            kept.write("kafka.new.consumer.topic.list=none\n")  # an undamaged topic
        _kept_twice(folder)
        _publish()
        _map_offsets(folder)
        _keep_snapshot(folder)
        yield {command: _printed_by(command, lines) for command, lines in PRINTING.items()}


def _printed_by(command: str, lines: list[str]) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for line in lines:
        for document in _documents(_run(command, line)):
            for name, kind in _names(document):
                names.setdefault(name, set()).update({kind} - {"null"})
    return names


def _map_offsets(folder: Path) -> None:
    """Write the map of a run that restored ten records."""
    with ts.open(folder / "store") as bucket:
        file = OffsetMapFile(bucket.opened().store, "", "r1")
        file.map.add_topic("none", "new")
        file.map.extend([OffsetRun("none", 0, 0, 0, 0, 10)])
        file.save()


def _keep_snapshot(folder: Path) -> None:
    with ts.open(folder / "store") as bucket:
        Snapshots.of(bucket.manager).write(FULL, is_hourly=True)


def _kept_twice(folder: Path) -> None:
    """Write three more generations: one with bad messages for its first parser, one with times in 1970, one replaced by
    a backfill. Leave a file of a killed run.
    """
    mended = (folder / "kept.properties").read_text() + "secor.generation=2\n"
    (folder / "mended.properties").write_text(mended)
    bad = "secor.message.parser.class=json\nsecor.consumer.max_bad_messages=-1\n"
    (folder / "strict.properties").write_text(mended + bad)
    assert tieredstore("pipeline", "run", "strict.properties", "--once").code == 0
    timed = "secor.generation=3\nsecor.message.parser.class=json\nmessage.timestamp.name=id\n"
    (folder / "timed.properties").write_text((folder / "kept.properties").read_text() + timed)
    assert tieredstore("pipeline", "run", "timed.properties", "--once").code == 0
    replaced = (folder / "kept.properties").read_text() + "secor.generation=4\n"
    (folder / "replaced.properties").write_text(replaced)
    assert tieredstore("pipeline", "run", "replaced.properties", "--once").code == 0
    backfill = "backfill", "replaced.properties", "none", "--generation", 5, "--replace", 4, "--yes"
    assert tieredstore("pipeline", *backfill).code == 0
    (folder / "kept" / "none").mkdir(exist_ok=True)
    (folder / "kept" / "none" / ".~tieredstore-left").write_bytes(b"of a killed run")


@pytest.mark.slow
def test_every_name_stands_on_the_page_and_on_the_page_alone_those_that_are_printed(
    printed: Printed,
) -> None:
    names = {name for named in printed.values() for name in named}
    assert {name for name in names - set(DOCUMENTED) if not is_date(name, names)} == set()
    assert set(DOCUMENTED) - names <= SELDOM
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)


def test_each_command_prints_the_names_that_it_printed_before(printed: Printed) -> None:
    assert golden_text(printed) == GOLDEN.read_text()


def golden_text(printed: Printed) -> str:
    lines: list[str] = []
    for command, names in sorted(printed.items()):
        fields = (f"{name}:{'|'.join(sorted(kinds)) or 'null'}" for name, kinds in sorted(names.items()))
        lines.append(f"{command}: {' '.join(fields)}\n")
    return "".join(lines)


def test_the_page_has_the_version_that_the_program_speaks() -> None:
    spoken = tieredstore("--version", "--json").json
    assert spoken["json_version"] == JSON_VERSION
    assert f"\nVersion {JSON_VERSION}. " in PAGE


def test_every_command_that_prints_json_is_here() -> None:
    printing = {
        path
        for path, command in commands_below(program())
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert printing == set(PRINTING), "add it to PRINTING; `python -m tests.cli.app.test_json_names`; `make docs`"


def _run(command: str, line: str) -> Result:
    settings = () if command in WITHOUT_SETTINGS else ("-c", "store.properties")
    return tieredstore(*line.split(), "--json", *settings)


def _documents(done: Result) -> list[Any]:
    assert done.stdout, done
    try:
        return [done.json]
    except ValueError:
        return done.lines


_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def _names(document: Any) -> Iterator[tuple[str, str]]:
    if isinstance(document, dict):
        for name, value in cast("dict[str, Any]", document).items():
            yield name, _KINDS.get(type(value), "null")
            if name not in {"figures", "snapshot"}:  # the names in these depend on the check or the snapshot
                yield from _names(value)
    elif isinstance(document, list):
        for value in cast("list[object]", document):
            yield from _names(value)


def _publish() -> None:
    Path("batches").mkdir()
    assert tieredstore("pubsub", "topics", "events", "--create", "--store", "./batches").code == 0
    with open_topics("./batches") as topics, BatchProducer(topics, "events") as producer:
        for _ in range(3):
            producer.send(b"v")
        topics.create("holes")
        for number in (0, 2):
            store_messages(topics, "holes", [message_of([b"v"], number)])
        topics.store.put("db/default/topics/events/0_1_1_0_host", b"an object of which no notification tells")


def _make_it_odd(folder: Path) -> None:
    """Make commands print every name: add anomalies to the bucket, and a log folder that uploads ignore."""
    make_it_odd(folder / "store", folder / "store.properties")
    shutil.copytree(folder / "kafka" / "txn-0", folder / "active" / "txn-0.0123456789abcdef0123456789abcdef-delete")
    shutil.copytree(folder / "kafka" / "txn-0", folder / "active" / "txn-0")
    # No checkpoint gives the high watermark of the partition with the hole.
    (folder / "kafka" / "replication-offset-checkpoint").write_text("0\n1\nnone 0 1\n")


if __name__ == "__main__":
    with printing_bucket() as written:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(golden_text(written))
