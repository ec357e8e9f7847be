"""``doctor --fix``, and the report of ``doctor`` about a bucket's lifecycle rules."""

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

    for module in ("ops.bucket", "places.opening"):
        monkeypatch.setattr(f"tieredstore.{module}.open_places", opened)


def fix(settings: Path, *arguments: str) -> Result:
    return tieredstore("doctor", "--fix", *arguments, "-c", settings)


def rules(settings: Path) -> list[tuple[str, str]]:
    lines, _ = tieredstore("doctor", "--json", "-c", settings).rows
    return [(line["outcome"], line["detail"]) for line in lines if line["check"] == "rules"]


@pytest.mark.slow
def test_rules_are_shown_and_the_dangerous_ones_named(settings: Path) -> None:
    assert rules(settings)[:3] == [
        ("bad", "the rule eats deletes objects after 30 days: exclude segments from the rule"),
        ("ok", "the bucket has the rule eats: Expiration (Days 30), under everything"),
        (
            "warn",
            (
                "no lifecycle rule aborts unfinished uploads, which cost money but are in no listing: "
                "run tieredstore doctor --fix"
            ),
        ),
    ]


def test_a_rule_is_added_once_and_a_plan_adds_none(settings: Path, service: S3Rules) -> None:
    before = service.text
    planned = fix(settings).clean()
    assert service.text == before
    assert planned.text.startswith("would be added: a rule aborts unfinished multipart uploads under 'kafka/'")
    assert planned.text.splitlines()[-1] == "nothing was added: --yes does it"
    (added,), summary = fix(settings, "--yes", "--min-age", "3d", "--json").clean().rows
    assert (added["action"], added["status"], added["code"]) == ("abort_rule", "done", "added")
    assert added["name"].startswith("tieredstore-abort-")
    assert summary["done"] == 1
    assert EATING in service.text
    after = service.text
    again = fix(settings, "--yes").clean()
    assert "already aborts unfinished uploads after 3 days" in again.text
    assert service.text == after
    name = added["name"]
    assert ("ok", f"the rule {name} aborts unfinished uploads after 3 days") in rules(settings)


def test_days_that_are_too_few_are_refused(settings: Path, service: S3Rules) -> None:
    settings.write_text(settings.read_text() + "upload.max.age.ms=86400000\n")
    fix(settings, "--yes", "--min-age", "1d").fails(2, "give 2 or more")
    fix(settings, "--yes", "--min-age", "36h").fails(2, "a store's rule counts whole days, so give 1d or more")
    assert service.writes == []


def test_a_rule_that_archives_is_named(settings: Path, service: S3Rules) -> None:
    rule = "<Transition><Days>9</Days><StorageClass>GLACIER</StorageClass></Transition>"
    service.text = service.text.replace("<Expiration><Days>30</Days></Expiration>", rule)
    assert rules(settings)[0] == (
        "bad", "the rule eats archives objects in GLACIER, where they cannot be read: exclude segments from the rule",
    )  # fmt: skip


def test_a_rule_that_aborts_running_uploads_is_named(settings: Path) -> None:
    """The rule was right until ``upload.max.age.ms`` was raised."""
    fix(settings, "--yes", "--min-age", "2d").clean()
    assert rules(settings)[-1][0] == "ok"
    settings.write_text(settings.read_text() + "upload.max.age.ms=172800000\n")
    outcome, sentence = rules(settings)[-1]
    assert outcome == "warn"
    assert sentence.endswith("after 2 days, but copies may take 48 h (upload.max.age.ms): raise the rule to 4 days")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--yes",), "--yes is for --fix"),
        (("--min-age", "3d"), "--min-age is for --fix"),
        (("--fix", "--write"), "--fix, --write and --for exclude each other"),
    ],
)
def test_options_that_go_together_are_asked_for(options: tuple[str, ...], sentence: str, settings: Path) -> None:
    tieredstore("doctor", "-c", settings, *options).fails(2, sentence)


def test_a_folder_has_none(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    for more in ((), ("--yes",)):
        done = fix(settings, *more)
        assert (done.code, "is a folder, which has no lifecycle rules" in done.text) == (6, True)
    assert rules(settings) == [("ok", "no lifecycle rule deletes segments")]


def test_doctor_says_whether_unfinished_uploads_end(settings: Path, service: S3Rules) -> None:
    aborting = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>"
    rule = f"<Rule><Status>Enabled</Status><Filter/>{aborting}</AbortIncompleteMultipartUpload></Rule>"
    texts = {
        "": ("warn", "tieredstore doctor --fix"),
        f"<LifecycleConfiguration>{rule}</LifecycleConfiguration>": ("ok", "aborts unfinished uploads after 1 days"),
        "<Other></Other>": ("skipped", "could not be read"),
    }
    for service.text, (outcome, words) in texts.items():
        lines = tieredstore("doctor", "-c", settings, "--json").lines
        checks = [check for check in lines if check.get("check") == "rules"]
        assert [check["outcome"] for check in checks if words in check["detail"]] == [outcome], checks


def test_of_google_doctor_has_nothing_to_say_of_uploads(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google aborts unfinished uploads by itself."""
    with FaultyServer(GcsRules()) as server:
        patch_store(monkeypatch, store_on(server))
        assert "uploads" not in tieredstore("doctor", "-c", settings).text
