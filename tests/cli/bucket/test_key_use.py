"""``keys rotate`` and ``keys list`` on a bucket of two key pairs."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import javaproperties
import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.golden.segments import segments, settings_text
from tests.support.paths import GOLDEN
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.config import settings_from
from tieredstore.config.properties import read_properties
from tieredstore.format.cluster_snapshot import ClusterSnapshot, TopicSettings
from tieredstore.ops.keys.rotation import Rotation, RotationStep
from tieredstore.ops.listing import QUARANTINE
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.remote import RemoteStorageManager

CASE = "08-keyring"
SEGMENTS = segments(CASE)
OLD = [segment for segment in SEGMENTS if b'"key1:' in segment.stored("rsm-manifest").read_bytes()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / CASE / "store", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def both(root: Path) -> Path:
    """Return settings with both key pairs; key2 is active."""
    return _settings(root, "both.properties", settings_text(CASE))


@pytest.fixture
def new_alone(root: Path) -> Path:
    texts = {name: value for name, value in settings_text(CASE).items() if ".key1." not in name}
    return _settings(root, "new.properties", texts | {"encryption.key.pairs": "key2"})


def _settings(root: Path, name: str, texts: dict[str, str]) -> Path:
    path = root.parent / name
    path.write_text(javaproperties.dumps(texts | {"storage.root": str(root)}, timestamp=False))
    return path


def let_caches_forget(root: Path) -> None:
    """Let an hour, in which caches expire, and a little more pass after the rotation."""
    (noted,) = root.rglob("!tieredstore/keys/rotated/*")
    os.utime(noted, (noted.stat().st_mtime - 3911, noted.stat().st_mtime - 3911))


def test_a_rotation_that_is_killed_is_remembered_for_as_long(
    root: Path, both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Rotation.run

    def killed(rotation: Rotation, listed: Iterable[SegmentObjects]) -> Iterator[RotationStep]:
        yield from itertools.islice(run(rotation, listed), 1)
        raise SystemExit(1)

    monkeypatch.setattr(Rotation, "run", killed)
    assert tieredstore("keys", "rotate", "--yes", "-c", both).code == 1
    assert [path.name for path in root.rglob("!tieredstore/keys/rotated/*")] == ["key1"]


def test_a_bucket_that_keeps_versions_may_need_a_retired_pair(
    root: Path, both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``restore undelete`` brings back manifests that were deleted before a rotation."""
    assert "older versions" not in tieredstore("keys", "list", "key3", "-c", both).stderr
    private = root.parent / "private"
    private.mkdir()
    with both.open("a") as file:
        file.write(f"endpoint.rules=pii\nendpoint.rules.pii.topics=pii.*\nendpoint.rules.pii.url={private.as_uri()}\n")
    kept: dict[str, list[str]] = {}
    monkeypatch.setattr(FilesystemObjectStore, "kept_after_delete", lambda store: kept.get(store.identity, []))
    for place in (root, private):
        kept = {place.as_uri(): ["versioning is suspended"]}
        told = tieredstore("keys", "list", "key3", "-c", both).stderr
        assert "versioning is suspended\ntieredstore: older versions of manifests were not checked" in told


def counted(settings: Path) -> dict[str | None, int]:
    return {row["key_id"]: row["segments"] for row in tieredstore("keys", "list", "-c", settings, "--json").rows[0]}


@pytest.mark.slow
def test_rotate_then_check_then_retire(root: Path, both: Path, new_alone: Path) -> None:
    before = {"key1": len(OLD), "key2": len(SEGMENTS) - len(OLD)}
    assert counted(both) == before
    needed = tieredstore("keys", "list", "key1", "-c", both)
    assert needed.code == 5
    assert needed.text.count("wrapped") == len(OLD)
    assert f"{len(OLD)} segments are encrypted by it" in needed.stderr

    dry = tieredstore("keys", "rotate", "-c", both).clean()
    assert f"{len(OLD)} data keys would be rotated to key pair 'key2'" in dry.text
    assert counted(both) == before

    done = tieredstore("keys", "rotate", "--yes", "-c", both).clean()
    assert f"{len(OLD)} data keys rotated to key pair 'key2'" in done.text
    until = re.search(r"readers need 'key1' until (20[\d:.TZ-]+), when", done.text)
    assert until is not None
    assert counted(both) == {"key2": len(SEGMENTS)}
    for settings in (both, new_alone):
        early = tieredstore("keys", "list", "key1", "-c", settings)
        assert (early.code, early.text.split()[0], early.text.split()[-1]) == (5, "cached", until[1])
        assert "run this again when the readers' caches have expired" in early.stderr
    let_caches_forget(root)
    texts = settings_text(CASE)
    for retention_ms in (-1, 2**63 - 1):
        texts["fetch.manifest.cache.retention.ms"] = str(retention_ms)
        forever = tieredstore("keys", "list", "key1", "-c", _settings(root, "forever.properties", texts))
        assert (forever.code, forever.text.split()[0]) == (5, "cached")
        assert "until readers restart (then run this with fetch.manifest.cache.retention.ms=0)" in forever.text
    texts["fetch.manifest.cache.retention.ms"] = "0"
    assert tieredstore("keys", "list", "key1", "-c", _settings(root, "restarted.properties", texts)).code == 0
    retired = tieredstore("keys", "list", "key1", "-c", new_alone)
    assert (retired.code, retired.stdout) == (0, b"")
    for segment in SEGMENTS:
        read = tieredstore("fetch", "-c", new_alone, segment.topic, segment.partition, segment.base_offset)
        assert read.stdout == segment.original("log").read_bytes()

    again = tieredstore("keys", "rotate", "--yes", "-c", both)
    assert "no data keys rotated" in again.text
    assert f"left alone: {len(SEGMENTS)} already encrypted with this key pair" in again.text
    assert "readers need" not in again.text


def test_snapshots_open_by_the_new_pair_alone_after_a_rotation(root: Path, both: Path, new_alone: Path) -> None:
    snapshot = ClusterSnapshot("c1", 3_600_000, (TopicSettings("orders", "A", 3, 1, {"retention.ms": "5"}),))
    with RemoteStorageManager(settings_from(read_properties(both) | {"encryption.key.pair.id": "key1"})) as manager:
        snapshots = Snapshots.of(manager)
        for is_hourly in (True, False):
            assert snapshots.write(snapshot, is_hourly=is_hourly)
        hourly, damaged = snapshots.find_all()
    path = root / damaged.key
    kept = path.read_bytes()
    assert tieredstore("keys", "rotate", SEGMENTS[0].topic, "--yes", "-c", both).code == 0
    needed = tieredstore("keys", "list", "key1", "-c", both)
    assert needed.code == 5
    assert "2 snapshots of the cluster are encrypted by it, or damaged" in needed.stderr

    path.write_bytes(kept.replace(b'"sha256"', b'"sha257"'))
    named = tieredstore("keys", "rotate", "--yes", "-c", both)
    assert named.code == 4
    assert "1 data key rotated" in named.text
    assert "is not a valid cluster snapshot" in named.stderr
    path.write_bytes(kept)
    assert "1 data key rotated" in tieredstore("keys", "rotate", "--yes", "-c", both).clean().text
    let_caches_forget(root)
    assert tieredstore("keys", "list", "key1", "-c", new_alone).code == 0
    with RemoteStorageManager(new_alone) as manager:
        assert [Snapshots.of(manager).read(stored) for stored in (hourly, damaged)] == [snapshot, snapshot]


def test_segments_in_the_uploaders_quarantine_count(root: Path, both: Path) -> None:
    prefix = settings_text(CASE).get("key.prefix", "")
    old = OLD[0].stored("rsm-manifest")
    stem = old.name.removesuffix("rsm-manifest")
    folder = old.parent.relative_to(GOLDEN / CASE / "store")
    aside = root / f"{prefix}{QUARANTINE}" / str(folder).removeprefix(prefix)
    aside.mkdir(parents=True)
    for path in (root / folder).glob(f"{stem}*"):
        path.rename(aside / path.name)
    assert counted(both) == {"key1": len(OLD), "key2": len(SEGMENTS) - len(OLD)}
    needed = tieredstore("keys", "list", "key1", "-c", both)
    assert (needed.code, needed.text.count(QUARANTINE)) == (5, 1)
    assert tieredstore("keys", "rotate", "--yes", "-c", both).code == 0
    assert counted(both) == {"key2": len(SEGMENTS)}
    assert tieredstore("keys", "list", "key1", "-c", both).code == 5
    let_caches_forget(root)
    assert tieredstore("keys", "list", "key1", "-c", both).code == 0


def test_a_pair_that_is_not_on_the_ring_ends_with_4_and_is_named(new_alone: Path, root: Path) -> None:
    done = tieredstore("keys", "rotate", "--yes", "-c", new_alone)
    assert done.code == 4
    assert done.stderr.count("key pair 'key1', which is not on the ring") == len(OLD)
    assert f"{len(OLD)} with a key pair that is not on the ring" in done.text
    without = tieredstore("keys", "rotate", "--yes", "--store", f"file://{root}")
    without.fails(2, "encryption.key.pair.id (the new pair)")


def test_json_has_a_line_a_segment_and_a_summary(both: Path) -> None:
    rows, summary = tieredstore("keys", "rotate", "--yes", "-c", both, "--json").rows
    assert [(row["base_offset"], row["key_id"], row["code"]) for row in rows] == [
        (segment.base_offset, *(("key1", "rotated") if segment in OLD else ("key2", "active"))) for segment in SEGMENTS
    ]
    assert (summary["done"], summary["codes"]["active"]) == (len(OLD), len(SEGMENTS) - len(OLD))


def test_the_active_pair_is_needed_though_nothing_is_encrypted_by_it_yet(root: Path, both: Path) -> None:
    for path in root.rglob("*.*"):
        path.unlink()
    active = tieredstore("keys", "list", "key2", "-c", both, "--json")
    assert active.code == 5
    assert "key pair 'key2' is active in these settings" in active.stderr
    _, summary = active.rows
    assert (summary["active"], summary["needed"], summary["segments"]) == (True, True, 0)


def test_where_nothing_is_listed_no_pair_can_be_retired(root: Path, both: Path) -> None:
    misspelt = _settings(root, "misspelt.properties", settings_text(CASE) | {"key.prefix": "kafak/"})
    for path in root.rglob("*.*"):
        path.unlink()
    for settings in (misspelt, both):
        checked = tieredstore("keys", "list", "key1", "-c", settings)
        checked.fails(3, "no segments found, so the use of key pair 'key1' is unknown")
        assert "nothing needs" not in checked.stderr
        as_json = tieredstore("keys", "list", "key1", "-c", settings, "--json")
        assert (as_json.code, as_json.rows[1]["needed"]) == (3, None)


def test_leftovers_damage_and_writes_that_have_not_ended_may_need_the_pair(root: Path, both: Path) -> None:
    tieredstore("keys", "rotate", "--yes", "-c", both)
    let_caches_forget(root)
    (root / f"{SEGMENTS[0].main_path}.rsm-manifest").write_bytes(b"{")
    (root / f"{SEGMENTS[1].main_path}.rsm-manifest").unlink()
    draft = (root / SEGMENTS[0].main_path).with_name(".~tieredstore-0123456789abcdef")
    draft.write_bytes(b"of a killed writer")
    checked = tieredstore("keys", "list", "key1", "-c", both, "--json")
    rows, summary = checked.rows
    assert (checked.code, summary["needed"]) == (5, True)
    reasons = {row["name"]: row["reason"] for row in rows}
    assert [reasons[segment.main_path] for segment in SEGMENTS[:2]] == ["damaged", "uncommitted"]
    assert sorted(reasons.values()) == ["damaged", "uncommitted", "unfinished"]


def test_only_a_topic_is_rotated_and_a_partition_needs_one(both: Path) -> None:
    assert tieredstore("keys", "rotate", "--yes", "-c", both, "-p", 0).code == 2
    assert tieredstore("keys", "rotate", "other", "--yes", "-c", both).code == 3
    rotated = tieredstore("keys", "rotate", SEGMENTS[0].topic, "-p", 0, "--yes", "-c", both)
    assert rotated.text.startswith(f"{len(OLD)} data keys rotated")


def test_the_table_names_the_active_pair_and_a_misspelt_one_is_told(both: Path) -> None:
    lines = tieredstore("keys", "list", "-c", both).text.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["key1", "key2"]
    assert [line.split()[-1] for line in lines[2:]] == ["yes", "active"]
    misspelt = tieredstore("keys", "list", "kye1", "-c", both)
    assert misspelt.code == 0
    assert "the settings list no key pair 'kye1': check the spelling" in misspelt.stderr
