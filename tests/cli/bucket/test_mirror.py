"""``mirror``: copies from cloud to cloud and back, and the command's output."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.damage import hostile_folders, hostile_manifests, hostile_objects
from tests.support.damage.hostile_buckets import Case, make_bucket
from tests.support.golden.segments import settings_text
from tests.support.paths import GOLDEN
from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.catalog_stores import OTHER_ID, MadeSegment, partition_of, run_of
from tests.support.stores.clouds import make_container
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.wrappers.stack import TokenBucket
from tieredstore.format.keys import Suffix


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make two partitions of a topic, another topic, and a leftover."""
    folder = tmp_path / "source"
    folder.mkdir()
    store = FilesystemObjectStore(folder)
    for segment in (*run_of(3, partition_of()), *run_of(1, partition_of(partition=1)), *run_of(1, partition_of("b"))):
        segment.put(store)
    store.put(MadeSegment(partition_of(), 90, 99).key(Suffix.LOG), b"left over")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mirror(source: Path, target: Path, *arguments: object) -> Result:
    return tieredstore("mirror", target, "--store", source, *arguments)


def know_minio(monkeypatch: pytest.MonkeyPatch, minio: S3Server) -> None:
    """Configure the SDK for MinIO by environment variables."""
    known = {"ENDPOINT_URL": minio.endpoint_url, "ACCESS_KEY_ID": minio.access_key, "REGION": REGION}
    for name, value in {**known, "SECRET_ACCESS_KEY": minio.secret_key}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def test_around_the_clouds_and_back_everything_is_as_it_was(
    tmp_path: Path,
    minio: S3Server,
    fake_gcs: GcsServer,
    azurite: AzureServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    know_minio(monkeypatch, minio)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake_gcs.endpoint_url)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    origin, end = tmp_path / "origin", tmp_path / "end"
    shutil.copytree(GOLDEN / "01-none" / "store", origin)
    shutil.copytree(GOLDEN / "04-zstd-enc" / "store", origin, dirs_exist_ok=True)
    before = files(origin)
    end.mkdir()
    places = [
        str(origin),
        f"s3://{minio.make_bucket()}/a prefix/",
        f"gs://{fake_gcs.make_bucket()}/kafka/",
        f"az://{make_container(azurite)}",
        str(end),
    ]
    count = sum(name.endswith(".rsm-manifest") for name in before)
    for here, there in itertools.pairwise(places):
        _, done = tieredstore("mirror", there, "--store", here, "--json").rows
        assert (done["done"], done["stored_size"]) == (count, sum(map(len, before.values()))), there
        _, again = tieredstore("mirror", there, "--store", here, "--json").rows
        assert (again["codes"], again["stored_size"]) == ({"there": count}, 0), there
    assert files(end) == files(origin) == before


def test_into_a_cloud_in_another_encoding_and_back(
    tmp_path: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = "07-txn"
    know_minio(monkeypatch, minio)
    (tmp_path / "back").mkdir()
    texts = {name: text for name, text in settings_text(case).items() if not name.startswith("storage.")}
    lines = {
        "plain": {**texts, "storage.backend.class": "filesystem", "storage.root": str(GOLDEN / case / "store")},
        "cloud": {
            **{name: text for name, text in settings_text("04-zstd-enc").items() if not name.startswith("storage.")},
            "storage.backend.class": "s3",
            "storage.s3.bucket.name": minio.make_bucket(),
            "storage.s3.endpoint.url": minio.endpoint_url,
            "storage.s3.path.style.access.enabled": "true",
            "storage.s3.region": REGION,
            "storage.aws.access.key.id": minio.access_key,
            "storage.aws.secret.access.key": minio.secret_key,
            "chunk.size": "100000",
        },
        "back": {**texts, "storage.backend.class": "filesystem", "storage.root": str(tmp_path / "back")},
    }
    for name, settings in lines.items():
        (tmp_path / f"{name}.properties").write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
    plain, cloud, back = (tmp_path / f"{name}.properties" for name in lines)
    assert tieredstore("mirror", "-c", plain, cloud).code == 0
    tieredstore("mirror", "-c", cloud, back).fails(2, "--decrypt")
    rows, _ = tieredstore("mirror", "-c", cloud, back, "--decrypt", "--json").rows
    assert {row["kind"] for row in rows} == {"transcoded"}
    for row in rows:
        where = (row["topic"], row["partition"], row["base_offset"])
        assert tieredstore("fetch", "-c", back, *where).stdout == tieredstore("fetch", "-c", plain, *where).stdout
    assert tieredstore("verify", "-c", cloud, "--level", "data").code == 0


def test_mirror_reports_copied_and_existing_segments(source: Path, target: Path) -> None:
    planned = mirror(source, target, "--dry-run")
    assert "would be copied  verbatim" in planned.text
    assert "5 segments would be copied" in planned.text
    assert "1 without a manifest in the source" in planned.text
    assert files(target) == {}
    done = mirror(source, target)
    assert (done.code, done.stderr) == (0, "")
    assert "5 segments copied" in done.text
    # The report calls no objects equal unless the mirror has read them.
    assert "5 already there (manifests and sizes compared, not bytes)" in mirror(source, target).text
    rows, summary = mirror(source, target, "--json").rows
    assert [row["code"] for row in rows].count("there") == 5
    assert summary == {
        "planned": 0, "done": 0, "kept": 6, "failed": 0, "stored_size": 0, "codes": {"leftover": 1, "there": 5},
        "dry_run": False, "stays": [],
    }  # fmt: skip
    assert len(files(target)) == 15


def test_a_damaged_segment_is_repaired_from_the_copy(tmp_path: Path, target: Path) -> None:
    good = GOLDEN / "11-single-record" / "store"
    assert mirror(good, target).code == 0
    before = files(target)
    log = min(target.rglob("*.log"))
    log.write_bytes(b"?" + log.read_bytes()[1:])
    damaged = files(target)

    planned = mirror(good, target, "--repair")
    assert "1 segment would be repaired" in planned.text
    assert "2 sound (every byte was verified)" in planned.text
    assert "nothing was repaired: --yes does it" in planned.text
    assert files(target) == damaged
    done = mirror(good, target, "--repair", "--yes")
    assert done.code == 0
    assert f"repaired  {log.relative_to(target).with_suffix('')}: .log" in done.text
    assert files(target) == before
    again, summary = mirror(good, target, "--repair", "--yes", "--json").rows
    assert {(row["action"], row["code"]) for row in again} == {("repair", "there")}
    assert summary["done"] == 0

    copy = tmp_path / "copy"
    shutil.copytree(target, copy)
    for folder in (copy, target):
        log = min(folder.rglob("*.log"))
        log.write_bytes(b"?" + log.read_bytes()[1:])
    refused = mirror(copy, target, "--repair", "--yes")
    assert refused.code == 4
    assert "the source's copy is not sound, so nothing was replaced" in refused.text


def test_options_of_a_repair_and_of_a_copy_exclude_each_other(source: Path, target: Path) -> None:
    mirror(source, target, "--yes").fails(2, "--yes belongs to --repair")
    mirror(source, target, "--repair", "--new-data-keys").fails(2, "--repair changes no encryption")
    mirror(source, target, "--new-data-keys").fails(2, "new data keys need encryption")


def test_topics_and_partitions_are_chosen(source: Path, target: Path) -> None:
    assert mirror(source, target, "events", "-p", 1).code == 0
    assert len(files(target)) == 3
    mirror(source, target, "evnts").fails(3, "events")
    assert mirror(source, target, "events", "--topic-id", OTHER_ID).code == 3
    assert mirror(source, target, "-p", 1).code == 2


def test_a_failed_segment_is_named_and_the_rest_is_copied(source: Path, target: Path) -> None:
    (source / run_of(1, partition_of())[0].key()).write_bytes(b"{")
    done = mirror(source, target)
    assert done.code == 4
    assert "failed  events-" in done.text
    assert "4 segments copied" in done.text
    assert len(files(target)) == 12
    rows, summary = mirror(source, target, "--json").rows
    assert (summary["failed"], [row["error"] is None for row in rows].count(False)) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "mirror needs TARGET"),
        (("",), "names no store"),
        (("events",), "there is no folder 'events': create it, or give a URL (file://, s3://, gs://, az://)"),
        (("{source}",), "the same place"),
        (("{target}", "--rate-limit", "fast"), "--rate-limit is 'fast'"),
        (("{target}", "--rate-limit", "0"), "--rate-limit is '0'"),
        (("{target}/absent",), "not an existing folder"),
    ],
)
def test_what_cannot_be_is_one_sentence(source: Path, target: Path, arguments: tuple[str, ...], said: str) -> None:
    tieredstore("mirror", "--store", source, *(text.format(source=source, target=target) for text in arguments)).fails(
        2, said
    )


def test_a_rate_holds_up_and_down(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[int, int] = {}
    lock = threading.Lock()

    def noting(take: Callable[[TokenBucket, int], None]) -> Callable[[TokenBucket, int], None]:
        def note(self: TokenBucket, count: int) -> None:
            with lock:
                taken[id(self)] = taken.get(id(self), 0) + count
            assert self.bytes_per_s == 3 << 20
            take(self, count)

        return note

    monkeypatch.setattr(TokenBucket, "take", noting(TokenBucket.take))
    _, summary = mirror(source, target, "--rate-limit", "3MiB", "--json").rows
    assert min(taken.values()) == summary["stored_size"]
    assert max(taken.values()) >= 2 * summary["stored_size"]  # each byte is read twice: from source and target
    assert len(taken) == 2


HOSTILE = [*hostile_manifests.CASES, *hostile_objects.CASES, *hostile_folders.CASES]
"""`make test` runs every tenth case, and `make soak` runs all."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.soak] if at % 10 else []) for at, case in enumerate(HOSTILE)],
)
def test_of_a_hostile_bucket_what_is_honest_is_copied(case: Case, tmp_path: Path) -> None:
    bucket = make_bucket(tmp_path, case.mode)
    case.change(bucket)
    lines = bucket.settings.read_text().replace("storage.root=store", "storage.root=target")
    assert "storage.root=target" in lines
    for name, more in {"verbatim": "", "transcoded": "chunk.size=5000\n"}.items():
        shutil.rmtree(tmp_path / "target", ignore_errors=True)
        (tmp_path / "target").mkdir()
        (tmp_path / "to.properties").write_text(lines + more)
        done = tieredstore("mirror", "-c", bucket.settings, tmp_path / "to.properties", "--json")
        *rows, _ = map(json.loads, done.stdout.splitlines())
        assert done.code in {0, 2, 4, 6}, (name, done.stderr)
        assert "Traceback" not in done.stderr
        assert all(row["topic"].startswith("victim") for row in rows if row["code"] == "failed"), name
        assert "copied" in {row["code"] for row in rows if row["topic"] == "honest"}, name
        verified = tieredstore("verify", "honest", "-c", tmp_path / "to.properties", "--level", "data")
        assert verified.code == 0, (name, verified.text)
        assert max(len(row["error"] or "") for row in rows) < 2_000
