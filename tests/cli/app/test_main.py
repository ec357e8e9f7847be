"""The program as a whole: help, versions, settings, one-sentence errors, bugs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, spawn, store_of, tieredstore, write_settings
from tests.support.cli.screens import all_commands
from tests.support.fresh_python import run_fresh
from tieredstore import __version__
from tieredstore.api.bucket import Bucket
from tieredstore.cli.app.entry import JSON_VERSION
from tieredstore.cli.app.main import main

pytestmark = pytest.mark.slow


COMMANDS = all_commands()


def words(text: str) -> str:
    """Return ``text`` without the line breaks of help pages."""
    return " ".join(text.split())


def test_help_teaches_a_first_session() -> None:
    shown = tieredstore("--help").clean()
    for command in ("keys new", "upload", "ls", "cat", "fetch"):
        assert f"tieredstore {command} " in words(shown.text)
    assert "Exit codes" in shown.text
    without = tieredstore()
    assert without.code == 2
    assert "first session" in words(without.text + without.stderr)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_help_text_with_an_example(command: str) -> None:
    shown = tieredstore(*command.split(), "--help").clean()
    assert re.search(rf"Example: ([^|]+ \| )?tieredstore {command}", words(shown.text))
    assert command.split(maxsplit=1)[0] in tieredstore("--help").text


@pytest.mark.parametrize("command", ["", "keys", *COMMANDS])
def test_help_has_no_types_of_python_and_cuts_no_word(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = tieredstore(*command.split(), "--help").text
    assert not re.search(
        r"<\w+>|<int range>|x>=0|\{\w+\}|\w\.\.\.|[│╭]",
        re.sub(r"(\[ARGS\]|FILE|KEY|LOG_DIR|RUN|TOPIC)\.\.\.", "", shown),
    ), shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "-v, --verbose" in shown or command == "keys"


def test_version() -> None:
    assert tieredstore("--version").text.startswith("tieredstore ")
    assert tieredstore("--version", "--json").json == {"version": __version__, "json_version": JSON_VERSION}
    assert tieredstore("--json", "--version").text == tieredstore("--version", "--json").text
    assert tieredstore("-v", "--version").text == tieredstore("--version").text


def test_the_settings_may_come_from_the_environment(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    assert spawn("ls", "--json", TIEREDSTORE_SETTINGS=str(settings)).stdout.startswith(
        b'{"summary": {"partitions": 0, '
    )
    spawn("ls", "--json").fails(2, "--settings")


def test_paths_in_the_settings_are_relative_to_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write_settings(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    assert len(tieredstore("ls", "-c", "../store.properties", "-p", "all", "--json").rows[0]) == 3


@pytest.mark.parametrize(
    ("text", "expected", "problems"),
    [
        (None, "there is no such settings file", 1),
        ("chunk.size=x", "chunk.size", 2),
        ("storage.backend.class=filesystem\nchunk.size=1\nstorage.root=nowhere", "not an existing folder", 1),
        ("storage.backend.class=filesystem\nchunk.size=1\nstorage.rot=store", "storage.root", 2),
    ],
)
def test_wrong_settings_are_a_line_each_and_exit_2(
    text: str | None, expected: str, problems: int, tmp_path: Path
) -> None:
    settings = tmp_path / "s.properties"
    if text is not None:
        settings.write_text(text)
    done = spawn("ls", "-c", settings)
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr.startswith("tieredstore: ")
    # With several problems, the first line gives their number.
    assert done.stderr.count("\n") == (problems + 1 if problems > 1 else 1)
    assert expected in done.stderr


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    secrets = {
        "storage.s3.bucket.name": "b",
        "storage.s3.region": "r",
        "storage.aws.access.key.id": "SECRET-ID",
        "storage.aws.secret.access.key": "SECRET-KEY",
        "chunk.size": "no number",
    }
    settings = write_settings(tmp_path, {"storage.backend.class": "s3", **secrets})
    for arguments in (["ls"], ["-v", "ls"], ["upload", str(ORIGINALS)]):
        done = tieredstore(*arguments, "-c", settings)
        assert done.code == 2
        assert "SECRET" not in done.text + done.stderr


def test_a_bug_shows_its_traceback_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_named: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Bucket, "topics", broken)
    with pytest.raises(ZeroDivisionError):
        main(["ls", "-c", str(write_settings(tmp_path))])


def test_verbose_tells_what_has_no_effect(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, {"metrics.num.samples": "3"})
    assert spawn("ls", "-c", settings).stderr == "tieredstore: no segments found\n"
    stderr = spawn("-v", "ls", "-c", settings).stderr
    assert "metrics.num.samples" in stderr
    assert spawn("ls", "-c", settings, "-v").stderr == stderr
    assert all(line.startswith("tieredstore: ") for line in stderr.splitlines())


def test_names_that_the_locale_cannot_show_are_no_reason_to_fail(tmp_path: Path) -> None:
    settings = store_of(tmp_path, ORIGINALS)
    (topic,) = (tmp_path / "store").iterdir()
    topic.rename(topic.with_name(topic.name.replace("single", "größe")))
    for manifest in (tmp_path / "store").rglob("*.rsm-manifest"):
        manifest.write_bytes(manifest.read_bytes().replace(b'"topic":"single"', '"topic":"größe"'.encode()))
    for arguments in (["ls"], ["inspect", "größe", "0", "0"], ["fetch", "größe", "0", "7"]):
        done = spawn(*arguments, "-c", settings, PYTHONIOENCODING="ascii")
        assert done.code == (3 if arguments[0] == "fetch" else 0)
        assert "Traceback" not in done.stderr


def test_sdks_print_no_lines_of_their_own() -> None:
    code = """
    import logging
    from tieredstore.cli.app.main import main

    main(["ls", "--help"])
    for name in ("azure.identity._credentials.chained", "botocore.credentials", "google.auth._default", "msal.token"):
        logging.getLogger(name).warning("failed to retrieve a token")
    """
    assert "Usage: tieredstore ls" in run_fresh(code)
