"""Commands that delete or rewrite change no byte of a store without ``--yes``; every command declares its effect."""

from __future__ import annotations

import os
import pty
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import javaproperties
import pytest

from tests.cli.bucket.test_clean_up import LEFT
from tests.cli.bucket.test_doctor_fix import patch_store
from tests.ops.garbage.test_lifecycle import S3Rules
from tests.support.cli.cli_process import ORIGINALS, store_of, tieredstore, write_settings
from tests.support.cli.screens import commands_below
from tests.support.faulty_server.server import FaultyServer
from tests.support.golden.segments import settings_text
from tests.support.ops.tools import content
from tests.support.paths import GOLDEN
from tests.support.records.hourly_topics import BY_HOUR, HOUR_MS, NOON_MS
from tests.support.records.topic_buckets import FIRST_ID
from tests.support.spark.spark_pipelines import ROOT, Kept
from tests.support.stores.catalog_stores import partition_of, run_of
from tests.support.stores.faulty_stores import store_on
from tests.support.stores.versioned_store import VersionedStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.cli.app.main import program
from tieredstore.cli.app.table import all_entries
from tieredstore.format.keys import Suffix
from tieredstore.model import TopicIdPartition
from tieredstore.pipelines.transforming import Message
from tieredstore.testing.segments import Record, build_batch


@dataclass(frozen=True)
class Scene:
    """A command line that has work to do in a store, and a function that returns the bytes that it must not change."""

    arguments: tuple[object, ...]
    look: Callable[[], object]


Prepare = Callable[[Path], Scene]


def in_folder(folder: Path, *arguments: object) -> Scene:
    return Scene(
        arguments,
        lambda: {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()},
    )


def of_segments(*arguments: object) -> Prepare:
    def prepare(folder: Path) -> Scene:
        settings = write_settings(folder)
        assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
        assert tieredstore("holds", "place", "case", "other", "-c", settings).code == 0
        return in_folder(folder, *arguments, "-c", settings)

    return prepare


def of_leftovers(folder: Path) -> Scene:
    root = folder / "store"
    root.mkdir()
    store = FilesystemObjectStore(root)
    for segment in [*run_of(2, partition_of()), LEFT]:
        segment.put(store)
    store.delete([LEFT.key()])
    for suffix in (Suffix.LOG, Suffix.INDEXES):
        two_days_older(root / LEFT.key(suffix))
    return in_folder(folder, "gc", "--store", root.as_uri())


def of_two_pairs(folder: Path) -> Scene:
    shutil.copytree(GOLDEN / "08-keyring" / "store", folder / "store")
    settings = folder / "both.properties"
    texts = settings_text("08-keyring") | {"storage.root": str(folder / "store")}
    settings.write_text(javaproperties.dumps(texts, timestamp=False))
    return in_folder(folder, "keys", "rotate", "-c", settings)


def of_orphans(folder: Path) -> Scene:
    assert tieredstore("pubsub", "topics", "events", "--create", "--store", folder).code == 0
    orphan = folder / "db/default/topics/events/0_1_1_0_host"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"an object of which no notification tells")
    two_days_older(orphan)
    return in_folder(folder, "pubsub", "gc", "--store", folder)


def two_days_older(path: Path) -> None:
    status = path.stat()
    os.utime(path, (status.st_mtime - 172_800, status.st_mtime - 172_800))


def refuse_each(_: Message) -> Message:
    raise ValueError("bad")


TRANSFORMER: Final = {"secor__message__transformer__class": f"{__name__}:refuse_each"}


def of_pipeline(verb: str, *options: str, first: dict[str, str] | None = None) -> Prepare:
    """Prepare five hours of a topic, written by the settings ``first``, and leftovers of a killed run."""

    def prepare(folder: Path) -> Scene:
        with closing(Kept(folder)) as kept:
            records = [Record(b"v", timestamp_ms=NOON_MS + hours * HOUR_MS) for hours in range(5)]
            kept.bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [build_batch(records, 0)], range(5))
            assert tieredstore("pipeline", "run", "--once", kept.file(**HOURS | (first or {}))).code == 0
            left = kept.output / ROOT / "orders" / ".~tieredstore-left"
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"of a killed run")
            two_days_older(left)
            return in_folder(kept.output, "pipeline", verb, kept.file(**HOURS), *options)

    return prepare


HOURS: Final = BY_HOUR | {"pipeline__finalize": "false"}
REWRITE: Final[dict[str, Prepare]] = {
    "gc": of_leftovers,
    "holds release": of_segments("holds", "release", "case"),
    "keys rotate": of_two_pairs,
    "pipeline backfill": of_pipeline("backfill", "orders", "--generation", "2"),
    "pipeline backfill --replace": of_pipeline("backfill", "orders", "--generation", "2", "--replace", "1"),
    "pipeline backfill --bad-messages": of_pipeline("backfill", "--bad-messages", first=TRANSFORMER),
    "pipeline finalize": of_pipeline("finalize"),
    "pipeline gc": of_pipeline("gc"),
    "pipeline rm": of_pipeline("rm"),
    "pubsub gc": of_orphans,
    "rm": of_segments("rm", "single"),
    "rm --segment": of_segments("rm", "single", "-p", 0, "--segment", 1),
}


@pytest.fixture(params=["terminal", "no terminal", "closed"])
def stdin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"y\nyes\n")  # answers, although no command may ask
    with os.fdopen(terminal) if request.param == "terminal" else Path(os.devnull).open() as stream:
        if request.param == "closed":
            stream.close()
        monkeypatch.setattr(sys, "stdin", stream)
        yield
    os.close(keyboard)
    if request.param != "terminal":
        os.close(terminal)


@pytest.mark.usefixtures("stdin")
@pytest.mark.parametrize("command", REWRITE)
def test_nothing_changes_without_yes(command: str, tmp_path: Path) -> None:
    check(REWRITE[command](tmp_path))


@pytest.mark.usefixtures("stdin")
def test_no_rule_of_a_bucket_changes_without_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = S3Rules("<LifecycleConfiguration/>")
    with FaultyServer(service) as server:
        patch_store(monkeypatch, store_on(server))
        settings = write_settings(tmp_path)
        check(Scene(("doctor", "--fix", "-c", settings), lambda: service.text))


def check(scene: Scene) -> None:
    before = scene.look()
    planned = tieredstore(*scene.arguments)
    assert (planned.code, planned.stderr) == (0, ""), planned
    assert planned.text.splitlines()[-1].endswith(": --yes does it")
    if "release" not in scene.arguments:
        as_json = tieredstore(*scene.arguments, "--json")
        assert as_json.code == 0
        assert '"dry_run": true' in as_json.text
    assert scene.look() == before
    done = tieredstore(*scene.arguments, "--yes")
    assert done.code == 0, done
    assert scene.look() != before


READ: Final = {
    "cat": "cat single", "du": "du", "fetch": "fetch single 0 0", "holds list": "holds list",
    "inspect": "inspect single 0 0", "keys list": "keys list", "ls": "ls", "query": "query",
    "restore offsets": "restore offsets", "verify": "verify",
}  # fmt: skip
"""Command lines of read-only commands, each with data to read."""
OF_FILES: Final = {"show", "pipeline status", "pipeline verify", "pubsub cat", "pubsub verify", "restore verify"}
"""Read-only commands that do not read segments, or not only segments."""


@pytest.mark.parametrize("command", READ)
def test_what_reads_changes_nothing(command: str, tmp_path: Path) -> None:
    scene = of_segments(*READ[command].split())(tmp_path)
    before = scene.look()
    assert tieredstore(*scene.arguments).code == 0
    assert scene.look() == before


ADD: Final[dict[str, tuple[object, ...]]] = {
    "holds place": ("holds", "place", "more", "single"),
    "mirror": ("mirror", "other"),
    "upload": ("upload", GOLDEN / "07-txn" / "original"),
}


@pytest.mark.parametrize("command", ADD)
def test_a_dry_run_of_what_adds_changes_nothing(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    scene = of_segments(*ADD[command])(tmp_path)
    before = scene.look()
    planned = tieredstore(*scene.arguments, "--dry-run")
    assert planned.code == 0, planned
    assert "would be" in planned.text
    assert scene.look() == before
    assert tieredstore(*scene.arguments).code == 0
    assert scene.look() != before


def test_every_command_says_in_the_table_what_it_does() -> None:
    commands = dict(commands_below(program()))
    effects = {path: effect for entry in all_entries() for path, effect in entry.effects.items()}
    assert effects.keys() == commands.keys()
    having = {
        option: {path for path, command in commands.items() if any(option in one.opts for one in command.params)}
        for option in ("--yes", "--dry-run")
    }
    by_effect = {kind: {path for path in effects if effects[path] == kind} for kind in ("reads", "adds", "rewrites")}
    # `mirror` only adds, except with --repair, which needs --yes.
    assert having["--yes"] == by_effect["rewrites"] | {"mirror"}
    assert {"holds place", "mirror", "upload"} <= having["--dry-run"] <= by_effect["adds"]
    assert by_effect["reads"] == READ.keys() | OF_FILES, "add the command to READ, or to OF_FILES"
    assert by_effect["rewrites"] == {name.partition(" --")[0] for name in REWRITE} | SPECIAL


def test_a_deleted_topic_stays_deleted_without_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VersionedStore()
    for segment in run_of(2, partition_of()):
        segment.put(store)
    store.delete([info.key for info in store.list()])
    monkeypatch.setattr("tieredstore.places.opening.open_places", lambda _settings: store)
    monkeypatch.setattr("tieredstore.restore.undelete.LOOK_AGAIN_S", 0)
    check(Scene(("restore", "undelete", "events", "-c", write_settings(tmp_path)), lambda: content(store)))


SPECIAL: Final = {"doctor", "restore finish", "restore groups", "restore schemas", "restore undelete"}
"""Commands that rewrite something other than objects in a folder.

``tests/restore`` tests those that need a cluster or a registry; ``restore undelete`` has a test above.
"""

PLACED: Final = {
    "rm": ["--to", "rm single -p 0 -c {}"],
    "cat": ["--from --to", "cat single -c {}"],
    "du": ["--from", "du single -c {}"],
    "ls": ["--from", "ls single -c {}"],
    "verify": ["--from", "verify single -c {}"],
    "pipeline backfill": ["--from --to", "pipeline backfill {} single --generation 2 --replace 1 --yes"],
}
"""Commands whose options take an offset or a time."""


@pytest.mark.parametrize("command", PLACED)
@pytest.mark.parametrize(
    ("place", "hint"),
    [("1795428000000", "@1795428000000"), ("1795428000", "@1795428000000"), ("20260131", "2026-01-31"), ("4", "@")],
)
def test_a_number_beyond_the_log_is_refused_with_the_way_to_write_a_time(
    command: str, place: str, hint: str, tmp_path: Path
) -> None:
    more = {"pipeline.name": "kept", "output.storage.backend.class": "filesystem", "output.storage.root": "output"}
    (tmp_path / "output").mkdir()
    settings = store_of(tmp_path, ORIGINALS)
    if "pipeline" in command:
        write_settings(tmp_path, more)
        assert tieredstore("pipeline", "run", "--once", settings).code == 0
    options, line = PLACED[command]
    for option in options.split():
        scene = in_folder(tmp_path, *line.format(settings).split())
        before = scene.look()
        refused = tieredstore(*scene.arguments, option, place)
        assert (refused.code, refused.text) == (2, ""), refused
        assert "is beyond the end of single-0 (3)" in refused.stderr or "is not an offset of a log" in refused.stderr
        assert "is written " in refused.stderr
        assert hint in refused.stderr
        assert scene.look() == before


def test_no_other_command_takes_a_place() -> None:
    taking = {
        path
        for path, command in commands_below(program())
        if any({"--from", "--to", "--since", "--until"} & set(one.opts) for one in command.params)
    }
    # ``PLACED`` lacks `holds place`, whose range may end beyond the log; `pubsub verify`, whose time selects audit
    # records; and the `restore` commands, which cut many logs at one time.
    of_restore = {"restore logdir", "restore produce", "restore verify"}
    assert taking == PLACED.keys() | {"holds place", "pubsub verify"} | of_restore
