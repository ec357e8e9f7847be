"""Commands over several places, entropy bits and the raw layout: they cover all objects, or refuse and say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.places.test_raw_reading import put_raw
from tests.support.paths import REPOSITORY
from tests.support.records.disk_segments import write_segments
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.cli.app.main import app
from tieredstore.config import load_settings
from tieredstore.kafka.logdir import describe
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.doctor.checkup import Verdict, run_checks
from tieredstore.remote import RemoteStorageManager

_ID = Uuid(bytes([7] * 16))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output if result.exception is None else f"{result.output}{result.exception}"


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """Make a settings file of two places with entropy bits, and a segment in each."""
    for name in ("all", "private"):
        (tmp_path / name).mkdir()
    file = tmp_path / "store.properties"
    file.write_text(
        "storage.backend.class=filesystem\nstorage.root=all\nchunk.size=64\nkey.prefix=tiered/\n"
        "endpoint.prefix.entropy.bits=3\nendpoint.cluster=c\n"
        f"endpoint.rules=pii\nendpoint.rules.pii.topics=pii.*\nendpoint.rules.pii.url=file://{tmp_path}/private\n"
    )
    with RemoteStorageManager(load_settings(file)) as manager:
        for topic in ("orders", "pii"):
            segment = describe(write_segments(tmp_path / topic, 2, TopicIdPartition(_ID, topic, 0))[0])
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), 1, 1000), segment.files)
    return file


def test_commands_walk_all_places(places: Path) -> None:
    code, output = run("ls", "-c", str(places))
    assert (code, output.count("orders") > 0, output.count("pii") > 0) == (0, True, True)
    for words in (("du",), ("verify",), ("gc",), ("keys", "list")):
        code, output = run(*words, "-c", str(places))
        assert (code, words) == (0, words), output
    code, output = run("rm", "pii", "-p", "0", "-c", str(places), "--yes")
    assert list((places.parent / "private").rglob("*.rsm-manifest")) == [], output
    assert len(list((places.parent / "all").rglob("*.rsm-manifest"))) == 1


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    write_segments(tmp_path / "logs", 3)
    put_raw(FilesystemObjectStore(tmp_path / "bucket"), tmp_path / "logs")
    file = tmp_path / "store.properties"
    file.write_text(
        "storage.backend.class=filesystem\nstorage.root=bucket\nchunk.size=64\nkey.prefix=p/\n"
        "endpoint.layout=pinterest\nendpoint.cluster=kafkaCluster1\n"
    )
    return file


def test_commands_read_the_raw_layout_or_refuse_it(raw: Path) -> None:
    for words in (("ls",), ("du",), ("cat", "events", "-p", "0"), ("inspect", "events", "0", "10")):
        code, output = run(*words, "-c", str(raw))
        assert (code, words) == (0, words), output
    refused: tuple[tuple[str, ...], ...] = (
        ("verify",),
        ("gc",),
        ("keys", "list"),
        ("keys", "list", "x"),
        ("keys", "rotate"),
    )
    for command in refused:
        code, output = run(*command, "-c", str(raw))
        assert (code != 0, "does not work on the raw layout" in output) == (True, True), (command, output)


def test_doctor_looks_at_every_place_and_at_what_is_recorded_there(places: Path) -> None:
    checks = list(run_checks(load_settings(places), write=True))
    assert {check.outcome for check in checks if check.check not in ("versions", "keys")} == {Verdict.GOOD}
    for subject in ("store", "read", "clock", "rules", "write", "conditions", "delete"):
        named = ["private" in check.detail for check in checks if check.check == subject]
        assert (subject, sorted(set(named))) == (subject, [False, True])
    (places.parent / "private").rename(places.parent / "elsewhere")
    broken = [check for check in run_checks(load_settings(places)) if check.outcome is Verdict.BAD]
    assert ["private" in check.detail for check in broken] == [True]
    (places.parent / "elsewhere").rename(places.parent / "private")
    # Settings without the key layout find nothing, and the message explains why.
    lines = places.read_text().splitlines(keepends=True)
    places.write_text("".join(line for line in lines if not line.startswith("endpoint.")))
    (wrong,) = [check for check in run_checks(load_settings(places)) if check.outcome is Verdict.BAD]
    assert (wrong.check, "entropy" in wrong.detail) == ("layout", True)


def costs(file: Path) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    prices = str(REPOSITORY / "examples" / "prices.toml")
    code, output = run("du", "-c", str(file), "--prices", prices, "--json")
    assert code == 0, output
    *rows, last = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {row["topic"]: row for row in rows}, last["summary"]


def test_cost_counts_what_lies_in_every_place_and_each_file_of_the_raw_layout(places: Path) -> None:
    rows, summary = costs(places)
    for topic, name in (("orders", "all"), ("pii", "private")):
        files = [
            path for path in (places.parent / name).rglob("*") if path.is_file() and "!tieredstore" not in str(path)
        ]
        assert (rows[topic]["objects"], rows[topic]["stored_size"]) == (3, sum(path.stat().st_size for path in files))
    assert summary["segments"] == 2


def test_cost_over_the_raw_layout(raw: Path) -> None:
    rows, _ = costs(raw)
    files = [path for path in (raw.parent / "bucket").rglob("*.*") if path.suffix in (".log", ".index", ".timeindex")]
    assert (rows["events"]["segments"], rows["events"]["objects"]) == (len(files) // 3, len(files))
    assert rows["events"]["stored_size"] == sum(path.stat().st_size for path in files)
