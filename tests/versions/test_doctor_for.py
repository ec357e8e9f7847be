"""``tieredstore doctor --for`` finds what an earlier release could not read, before releases are mixed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.versions.state import FOLDER
from tieredstore.config import settings_from
from tieredstore.ops.doctor.checkup import Verdict, check_for
from tieredstore.versions import HOLD, KINDS, LEASE, WATERMARK, parse_release

HELD = "!tieredstore/holds/case-0.json"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return shutil.copytree(FOLDER / "bucket", tmp_path / "bucket")


def test_a_release_can_read_what_it_wrote(bucket: Path) -> None:
    done = tieredstore("doctor", "--store", bucket, "--for", "0.1")
    assert done.code == 0, done.stderr
    assert done.text == "ok      release     tieredstore 0.1 can read all 27 objects of tieredstore's own state\n"


def test_later_and_damaged_objects_are_listed_with_an_exit_code(bucket: Path) -> None:
    held, lease = bucket / HELD, bucket / "!tieredstore/pubsub/default/governor/lease"
    held.write_bytes(held.read_bytes().replace(b'"version": 1', b'"version": 7'))
    lease.write_bytes(b"[]")
    (bucket / "out/events/dt=2026-01-01/_SUCCESS").write_bytes(b"")  # Hadoop's
    done = tieredstore("doctor", "--store", bucket, "--for", "0.1.0", "--json")
    assert done.code == 2
    hold, damaged, last = map(json.loads, done.text.splitlines())
    assert hold == {
        "check": "release", "outcome": "bad", "figures": {"version": 7, "reads": 1},
        "detail": f"{HELD} is a legal hold of version 7, and tieredstore 0.1.0 reads up to version 1",
    }  # fmt: skip
    assert "lease is a damaged pub/sub governor lease, without a version" in damaged["detail"]
    assert last == {"summary": {"ok": 0, "warn": 0, "bad": 2, "skipped": 0}}


def test_what_this_release_would_write_is_said_before_it_writes_any(bucket: Path) -> None:
    settings = settings_from({"storage.backend.class": "filesystem", "storage.root": str(bucket), "chunk.size": "1024"})
    later = {
        HOLD: dataclasses.replace(HOLD, releases=(("0.1", 1), ("0.3", 2))),
        LEASE: dataclasses.replace(LEASE, releases=(("0.2", 1),)),
    }
    kinds = [later.get(kind, kind) for kind in KINDS]
    assert [later[HOLD].version_for(parse_release(text, kinds)) for text in ("0.1", "0.2.4", "0.3")] == [1, 1, 2]
    said = [(check.outcome, check.detail) for check in check_for(settings, "0.1", kinds)]
    lease = "a pub/sub governor lease of version 1, and tieredstore 0.1 does not know this kind of object"
    assert said == [
        (Verdict.WARN, "this release writes a legal hold of version 2, and tieredstore 0.1 reads up to version 1"),
        (Verdict.WARN, f"this release writes {lease}"),
        (Verdict.BAD, f"!tieredstore/pubsub/default/governor/lease is {lease}"),
    ]
    assert [check.outcome for check in check_for(settings, "0.3", kinds)] == [Verdict.GOOD]
    assert WATERMARK.version_for((0, 0)) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--for", "0.2"], "'0.2' is not a release that this release knows: 0.1"),
        (["--for", "x"], "'x' is not a release"),
        (["--for", "0.1", "--write"], "--fix, --write and --for exclude each other"),
        (["--for", "0.1", "--fix"], "--fix, --write and --for exclude each other"),
    ],
)
def test_other_arguments_are_one_sentence(arguments: list[str], sentence: str) -> None:
    done = tieredstore("doctor", "--store", FOLDER / "bucket", *arguments)
    assert done.code == 2
    assert sentence in done.stderr
