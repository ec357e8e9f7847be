"""Tests of the doctor's checks: each passes where all is well, and names the problem elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import ORIGINALS, tieredstore, write_settings
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_gcs
from tests.support.stores.doubles import DelegatingObjectStore, ScriptedStore
from tests.support.stores.s3_stores import impatient_store, options_for
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.cloud.store import concerns
from tieredstore.backends.gcs.store import rule_sentences
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import load_settings
from tieredstore.errors import AccessDeniedError
from tieredstore.format.manifest import MAX_MANIFEST_SIZE
from tieredstore.ops.doctor.checkup import Check, Verdict, check_conditional_writes, run_checks


def by_subject(checks: Iterator[Check]) -> dict[str, list[Check]]:
    subjects: dict[str, list[Check]] = {}
    for check in checks:
        subjects.setdefault(check.check, []).append(check)
    return subjects


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return write_settings(tmp_path)


def of(settings: Path, *, write: bool = False) -> dict[str, list[Check]]:
    return by_subject(run_checks(load_settings(settings), write=write))


def test_a_bucket_that_is_well_is_green_and_left_as_it_was(settings: Path, tmp_path: Path) -> None:
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    before = sorted(tmp_path.rglob("*"))
    checks = of(settings, write=True)
    assert {subject: [check.outcome for check in of_it] for subject, of_it in checks.items()} == {
        "versions": [Verdict.GOOD], "keys": [Verdict.SKIPPED], "caller": [Verdict.GOOD], "store": [Verdict.GOOD],
        "read": [Verdict.GOOD], "clock": [Verdict.GOOD], "rules": [Verdict.GOOD], "write": [Verdict.GOOD],
        "conditions": [Verdict.GOOD], "delete": [Verdict.GOOD],
    }  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before
    assert set(checks["read"][0].figures) == {"get_ms"}
    # The detail says how many manifests were read, so that an operator does not think that ``doctor`` checks the
    # segments.
    assert checks["read"][0].detail.startswith("1 of 3 manifests read in ")
    assert "no segment was checked" in checks["read"][0].detail


def test_nothing_is_written_unless_asked_for(settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_store(monkeypatch, ScriptedStore(MemoryObjectStore()).on("put", do=AssertionError("it writes")))
    checks = of(settings)
    assert [check.outcome for check in checks["write"]] == [Verdict.SKIPPED]
    assert "conditions" not in checks
    # The detail names ``key.prefix``: an empty bucket may be the wrong one.
    assert (checks["store"][0].outcome, "key.prefix" in checks["store"][0].detail) == (Verdict.WARN, True)


def test_keys_that_fit_and_keys_that_others_may_read(settings: Path, tmp_path: Path) -> None:
    settings.write_text(settings.read_text() + tieredstore("keys", "new", "k", "-d", tmp_path, "--bits", 2048).text)
    (good,) = of(settings)["keys"]
    assert (good.outcome, good.detail) == (Verdict.GOOD, "1 key pair, k active: wrapping and unwrapping work")
    (tmp_path / "k.private.pem").chmod(0o644)
    _, open_to_all = of(settings)["keys"]
    assert open_to_all.outcome is Verdict.WARN
    assert "mode 0644): chmod 600" in open_to_all.detail
    (tmp_path / "k.private.pem").write_text("nothing")
    checks = of(settings)
    assert (checks["keys"][0].outcome, checks["keys"][0].exit_code) == (Verdict.BAD, 2)
    # The check of the store still runs.
    assert checks["store"][0].outcome is Verdict.WARN


def test_a_large_object_named_like_a_manifest_is_not_read(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore(MemoryObjectStore())
    store.put("a.rsm-manifest", bytes(MAX_MANIFEST_SIZE + 1))
    patch_store(monkeypatch, store)
    assert [check.outcome for check in of(settings)["read"]] == [Verdict.GOOD]
    assert store.requests["get"]
    assert store.bytes_down == 0


def patch_store(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> None:
    monkeypatch.setattr("tieredstore.ops.bucket.open_places", lambda _settings: store)


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [(0, Verdict.GOOD), (-0.9, Verdict.GOOD), (100, Verdict.WARN), (-100, Verdict.WARN), (1000, Verdict.BAD),
     (-1000, Verdict.BAD), (None, Verdict.WARN)],
)  # fmt: skip
def test_clocks_that_differ(
    seconds: float | None, outcome: Verdict, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now_ms(_: object) -> int | None:
        return None if seconds is None else round((time.time() + seconds) * 1000)

    patch_store(monkeypatch, ScriptedStore(MemoryObjectStore()).change("now_ms", change=now_ms))
    assert [check.outcome for check in of(settings)["clock"]] == [outcome]


class Careless(DelegatingObjectStore):
    """A store that ignores the conditions of writes. If ``honest``, it says that it does not support them."""

    def __init__(self, *, honest: bool) -> None:
        super().__init__(MemoryObjectStore())
        self._honest = honest

    @property
    def conditional_writes(self) -> bool:
        return not self._honest

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self.inner.put(key, body)

    def replace(self, key: str, body: Body, etag: str) -> str:
        return self.inner.replace(key, body, self.inner.head(key).etag or "")


def test_conditions_that_do_not_hold_are_found(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_store(monkeypatch, Careless(honest=False))
    broken = of(settings, write=True)["conditions"]
    assert {check.outcome for check in broken} == {Verdict.BAD}
    assert "replaced an existing object" in broken[0].detail
    assert any("8 of 8 concurrent creations of one object succeeded" in check.detail for check in broken)
    patch_store(monkeypatch, Careless(honest=True))
    assert [check.outcome for check in of(settings, write=True)["conditions"]] == [Verdict.WARN]


def test_a_race_of_the_memory_store_has_one_winner() -> None:
    assert list(check_conditional_writes(MemoryObjectStore(), "place")) == []


def test_who_may_read_and_not_write_is_told(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = ScriptedStore(MemoryObjectStore()).on("put", do=AccessDeniedError("writes are not allowed"))
    patch_store(monkeypatch, refusing)
    (write,) = of(settings, write=True)["write"]
    assert (write.outcome, write.exit_code, write.detail) == (Verdict.BAD, 6, "writes are not allowed")


def test_a_cache_folder_that_cannot_be_used_and_a_full_disk(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "chunks"
    lines = {
        "fetch.chunk.cache.class": "disk",
        "fetch.chunk.cache.size": "1000000",
        "fetch.chunk.cache.path": str(cache),
    }
    settings.write_text(settings.read_text() + "".join(f"{name}={text}\n" for name, text in lines.items()))
    assert of(settings)["cache"][0].outcome is Verdict.GOOD
    assert not cache.exists()
    usage: Any = type("Usage", (), {"total": 100, "free": 1})
    monkeypatch.setattr("tieredstore.ops.doctor.checkup.shutil.disk_usage", lambda _path: usage)
    assert of(settings)["cache"][0].outcome is Verdict.WARN
    (tmp_path / "cache").write_text("a file")
    assert of(settings)["cache"][0].outcome is Verdict.BAD
    # A path that the system refuses to look up does not end the checks.
    settings.write_text(settings.read_text().replace(str(cache), str(tmp_path / f"{'x' * 300}" / "chunks")))
    assert {"cache", "store"} <= of(settings).keys()


def test_the_command_has_a_line_each_and_the_first_failures_exit_code(settings: Path, tmp_path: Path) -> None:
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    done = tieredstore("doctor", "-c", settings, "--write")
    assert (done.code, done.stderr) == (0, "")
    assert [line.split()[:2] for line in done.text.splitlines()][:2] == [["ok", "versions"], ["skipped", "keys"]]
    rows = tieredstore("doctor", "-c", settings, "--json").stdout.splitlines()
    assert b'"summary"' in rows[-1]
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    gone = tieredstore("doctor", "-c", settings)
    assert gone.code in {2, 6}
    assert "bad" in gone.text


@pytest.mark.parametrize(
    ("prefix", "of_rule", "concerned"),
    [("", [], True), ("kafka/", [], True), ("kafka/", ["kafka/"], True), ("kafka/", ["kafka/orders"], True),
     ("kafka/", ["k"], True), ("kafka/", ["logs/"], False), ("", ["logs/"], True), ("kafka/", ["logs/", "kaf"], True)],
)  # fmt: skip
def test_which_rules_concern_a_prefix(prefix: str, of_rule: list[str], concerned: bool) -> None:
    assert concerns(prefix, of_rule) is concerned


def test_rules_of_s3_that_take_segments_away(minio: S3Server) -> None:
    bucket, client = minio.make_bucket(), minio.plain
    with closing(impatient_store(options_for(minio, bucket))) as store:
        assert store.rules_on("kafka/") == []
        rules: Any = [
            {"ID": "eats", "Status": "Enabled", "Filter": {"Prefix": "kafka/"}, "Expiration": {"Days": 30}},
            {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": "kafka/"}, "Expiration": {"Days": 7}},
            {"ID": "others", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 7}},
        ]
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
        assert store.rules_on("kafka/") == ["the rule eats deletes objects after 30 days"]
        assert store.caller().startswith("access key …")
        assert minio.secret_key not in store.caller()


def test_rules_of_google_that_take_segments_away(fake_gcs: GcsServer) -> None:
    with closing(make_gcs(fake_gcs.endpoint_url, fake_gcs.make_bucket())) as store:
        assert list(store.rules_on("kafka/") or []) == []
        assert "credentials" in store.caller().lower()
    rule = [
        {"action": {"type": "Delete"}, "condition": {"age": 30}},
        {"action": {"type": "Delete"}, "condition": {"age": 30, "isLive": False}},
        {"action": {"type": "Delete"}, "condition": {"age": 1, "numNewerVersions": 3}},
        {"action": {"type": "Delete"}, "condition": {"age": 5, "matchesPrefix": ["logs/"]}},
        {"action": {"type": "SetStorageClass", "storageClass": "ARCHIVE"}, "condition": {"age": 1}},
        {"action": {"type": "Delete"}, "condition": {"createdBefore": "2026-01-01"}},
    ]
    assert rule_sentences({"lifecycle": {"rule": rule}}, "kafka/") == [
        "a rule deletes objects after 30 days",
        "a rule deletes objects if createdBefore is 2026-01-01",
    ]


def test_the_doctor_says_whether_a_deleted_topic_could_come_back(
    settings: Path, minio: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = minio.make_bucket()
    with closing(impatient_store(options_for(minio, bucket))) as store:
        patch_store(monkeypatch, store)
        (refused,) = of(settings, write=True)["undelete"]
        assert (refused.outcome, refused.detail.rpartition(": ")[2]) == (
            Verdict.WARN, "versioning is off in the bucket, so deleted objects are gone",
        )  # fmt: skip
        minio.plain.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        rule: Any = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""}}
        rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": 7}
        minio.plain.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
        checks = of(settings, write=True)
        assert [check.outcome for check in checks["undelete"]] == [Verdict.GOOD, Verdict.GOOD]
        assert checks["undelete"][1].detail == "a deleted object was brought back"
        (kept,) = [check for check in checks["rules"] if "versioning is enabled" in check.detail]
        assert kept.detail.endswith("and are billed, and the rule old removes them after 7 days")
        assert list(store.list()) == []
        denied = ScriptedStore(store).on("remove_marker", do=AccessDeniedError("s3:DeleteObjectVersion"))
        patch_store(monkeypatch, denied)
        _, without_right = of(settings, write=True)["undelete"]
        assert (without_right.outcome, "s3:DeleteObjectVersion" in without_right.detail) == (Verdict.WARN, True)
