"""``lifecycle show`` and ``apply``, and what ``doctor`` says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ops.garbage.test_lifecycle import GcsRules, S3Rules
from tests.support.cli.cli_process import Result, tieredstore, write_settings
from tests.support.faulty_server.server import FaultyServer
from tests.support.stores.faulty_stores import store_on
from tieredstore.backends.base import ObjectStore
from tieredstore.config import Settings

EATING = "<Rule><ID>eats</ID><Status>Enabled</Status><Filter/><Expiration><Days>30</Days></Expiration></Rule>"


@pytest.fixture
def service() -> S3Rules:
    return S3Rules(f"<LifecycleConfiguration>{EATING}</LifecycleConfiguration>")


@pytest.fixture
def settings(service: S3Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with FaultyServer(service) as server:
        patch_store(monkeypatch, store_on(server))
        yield write_settings(tmp_path, {"key.prefix": "kafka/"})


def patch_store(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> None:
    def opened(_: Settings) -> ObjectStore:
        return store

    monkeypatch.setattr("tieredstore.ops.bucket.open_places", opened)


def run(settings: Path, *arguments: str) -> Result:
    return tieredstore("lifecycle", *arguments, "-c", settings)


def test_rules_are_shown_and_the_dangerous_ones_named(settings: Path) -> None:
    shown = run(settings, "show")
    assert shown.code == 0
    assert "Expiration (Days 30)" in shown.text
    assert "no rule aborts unfinished uploads: lifecycle apply adds one" in shown.text
    assert "the rule eats deletes objects after 30 days: segments are lost by it" in shown.stderr


def test_a_rule_is_added_once_and_a_dry_run_adds_none(settings: Path, service: S3Rules) -> None:
    before = service.text
    planned = run(settings, "apply", "--dry-run")
    assert (planned.code, service.text) == (0, before)
    assert planned.text.startswith("would be added: a rule aborts unfinished multipart uploads under 'kafka/'")
    added = run(settings, "apply", "--yes", "--days", "3", "--json").json
    assert (added["outcome"], added["aborts_after_days"], added["before"]) == ("added", 3, before)
    assert EATING in service.text
    again = run(settings, "apply", "--yes")
    assert (again.code, again.text.split()[0]) == (0, "the")
    assert "after 3 days already" in again.text
    assert "unfinished uploads are aborted after 3 days, by tieredstore-abort-" in run(settings, "show").text
    document = run(settings, "show", "--json").json
    assert document["rules"][0]["name"] == "eats"
    assert (document["aborts_after_days"], len(document["dangers"]), document["before"]) == (3, 1, service.text)


def test_days_that_are_too_few_are_refused(settings: Path, service: S3Rules) -> None:
    settings.write_text(settings.read_text() + "upload.max.age.ms=86400000\n")
    run(settings, "apply", "--yes", "--days", "1").fails(2, "give 2 or more")
    assert service.writes == []


def test_a_folder_has_none(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    shown = run(settings, "show")
    assert (shown.code, "is a folder, and has no lifecycle rules" in shown.text) == (0, True)
    applied = run(settings, "apply", "--yes")
    assert (applied.code, "is a folder, and has no lifecycle rules" in applied.text) == (6, True)
    assert run(settings, "show", "--json").json["rules"] == []


def test_doctor_says_whether_unfinished_uploads_end(settings: Path, service: S3Rules) -> None:
    aborting = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>"
    rule = f"<Rule><Status>Enabled</Status><Filter/>{aborting}</AbortIncompleteMultipartUpload></Rule>"
    texts = {
        "": ("warn", "tieredstore lifecycle apply"),
        f"<LifecycleConfiguration>{rule}</LifecycleConfiguration>": ("good", "aborts unfinished uploads after 1 days"),
        "<Other></Other>": ("skipped", "was not told"),
    }
    for service.text, (outcome, words) in texts.items():
        lines = tieredstore("doctor", "-c", settings, "--json").lines
        checks = [check for check in lines if check.get("check") == "rules"]
        assert [check["outcome"] for check in checks if words in check["detail"]] == [outcome], checks


def test_of_google_doctor_has_nothing_to_say_of_uploads(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end there of their own accord."""
    with FaultyServer(GcsRules()) as server:
        patch_store(monkeypatch, store_on(server))
        assert "uploads" not in tieredstore("doctor", "-c", settings).text
