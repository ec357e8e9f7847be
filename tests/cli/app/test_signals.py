"""One Ctrl-C, SIGTERM or SIGHUP ends every command soon, wherever it waits for a slow store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.cli_process import TXN, command, environment, tieredstore
from tests.support.cli.forked_commands import Ended, ForkedCommands
from tests.support.cli.signalled_commands import SOON_S, Case, Place, Stage, write_cloud_settings
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.paths import REPOSITORY
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

LIST, MANIFEST, LOG = Place(Step.LIST), Place(Step.READ, "rsm-manifest"), Place(Step.READ, ".log")
INDEXES, HEAD = Place(Step.READ, ".indexes"), Place(Step.HEAD, "rsm-manifest")
BEGIN, PART, COMPLETE, ABORT = Place(Step.BEGIN), Place(Step.PART), Place(Step.COMPLETE), Place(Step.ABORT)
WRITE_LOG, WRITE_MANIFEST = Place(Step.WRITE, ".log"), Place(Step.WRITE, "rsm-manifest")

READING = {
    "ls": (LIST, MANIFEST),
    "ls txn -p 0 --json": (LIST, MANIFEST),
    "inspect txn 0 605": (LIST, MANIFEST),
    "inspect txn 0 605 --index offset": (LIST, MANIFEST, INDEXES),
    "fetch txn 0 605 --index offset -o FILE": (INDEXES,),
    "fetch txn 0 605": (LIST, MANIFEST, LOG),
    "fetch txn 0 605 -o FILE": (LIST, MANIFEST, LOG),
    "du": (LIST, MANIFEST),
    "cat txn": (LIST, MANIFEST, LOG),
    "cat txn --follow": (LIST, MANIFEST, LOG),
    "query SQL": (LIST, MANIFEST, LOG),
    "query SQL -o ROWS": (LOG,),
    "cat txn -o ROWS": (LIST, MANIFEST, LOG),
    "cat txn -o TAKEN": (LIST, MANIFEST, LOG),
    "rm txn -p 0 --segment 605 --yes": (LIST,),
    "keys list": (LIST, MANIFEST),
    "keys list key1": (LIST, MANIFEST),
    "keys rotate --yes": (LIST, MANIFEST),
    "keys rotate": (MANIFEST,),
    "verify --level data": (LIST, MANIFEST, INDEXES, LOG),
    "mirror TAKEN": (LIST, MANIFEST, INDEXES, LOG),
    "rm txn --yes": (LIST, MANIFEST),
    "gc": (LIST,),
}
"""Requests at which each command waits when it is stopped. Commands that delete or rewrite have not changed anything
yet.
"""

WRITING = {
    Cloud.S3: {
        "upload LOGS": (LIST, HEAD, BEGIN, PART, COMPLETE, Place(Step.WRITE, ".indexes"), WRITE_MANIFEST),
        "upload SMALL": (WRITE_LOG,),
        "keys rotate --yes": (WRITE_MANIFEST,),
        "rm txn -p 0 --segment 605 --yes": (Place(Step.BULK),),
    },
    Cloud.GCS: {
        "upload LOGS": (LIST, HEAD, BEGIN, PART),
        "rm txn -p 0 --segment 605 --yes": (Place(Step.DELETE),),
    },
    Cloud.AZURE: {
        "upload LOGS": (LIST, HEAD, PART, COMPLETE, WRITE_MANIFEST),
        "rm txn -p 0 --segment 605 --yes": (Place(Step.BULK),),
    },
}
LATE_ABORT = Place(Step.ABORT, honest_after_s=3.0)
SEGMENT_ID = re.compile(r"may have left objects.*--segment=(\S+)")
MODULES = {Cloud.S3: "boto3", Cloud.GCS: "google.cloud.storage", Cloud.AZURE: "azure.storage.blob"}


def check(case: Case, ended: Ended | None, folder: Path) -> Ended:
    """Check exit code, messages and leftovers of a stopped command."""
    assert ended is not None, f"{case} goes on"
    assert ended.code == 128 + case.signum, (case, ended)
    assert "Traceback" not in ended.stderr, (case, ended)
    if case.command.startswith("keys rotate") and case.place is not LIST:
        assert ended.stderr.startswith("tieredstore: stopped; no data keys "), (case, ended)
    elif case.command.startswith(("verify", "mirror")) or (case.command.startswith("rm ") and case.place is not LIST):
        assert ended.stderr.startswith("tieredstore: stopped; "), (case, ended)
    elif not case.command.startswith(("upload", "keys rotate")):
        assert ended.stderr == "", case
    assert [path.name for path in folder.iterdir() if path.suffix != ".properties"] == [], case
    return ended


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    folder = tmp_path_factory.mktemp("commands")
    with ForkedCommands(folder, ("boto3", "tieredstore.remote", "tieredstore.reading.reader")) as forked:
        yield forked


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, commands: ForkedCommands) -> Stage:
    return Stage(Cloud.S3, tmp_path_factory.mktemp("stage"), commands)


def test_commands_that_read_end_soon_and_leave_nothing(stage: Stage) -> None:
    cases = [
        Case("fetch txn 0 605 -o FILE", LOG, signal.SIGTERM),
        Case("fetch txn 0 605 -o FILE", LOG, signal.SIGINT),
        Case("fetch txn 0 605", LOG, signal.SIGHUP),
        Case("fetch txn 0 605 --index offset -o FILE", INDEXES, signal.SIGINT),
        Case("cat txn", LOG, signal.SIGINT),
        Case("ls", MANIFEST, signal.SIGTERM),
        Case("inspect txn 0 605", LIST, signal.SIGINT),
        Case("keys rotate --yes", MANIFEST, signal.SIGINT),
        Case("verify --level data", LOG, signal.SIGTERM),
        Case("mirror TAKEN", LOG, signal.SIGINT),
        Case("gc", LIST, signal.SIGTERM),
        Case("query SQL", LOG, signal.SIGINT),
        Case("query SQL -o ROWS", LOG, signal.SIGTERM),
        Case("cat txn -o ROWS", LOG, signal.SIGINT),
        Case("cat txn -o TAKEN", LOG, signal.SIGINT),
    ]
    for case, ended, folder in stage.run(cases):
        check(case, ended, folder)


def test_a_copy_that_is_stopped_takes_back_what_it_sent_and_says_how_to_go_on(stage: Stage) -> None:
    # The last case's abort is answered only after 3 s, longer than an interrupted command would wait by default.
    cases = [Case("upload LOGS", PART, signum) for signum in SIGNALS]
    cases.append(Case("upload LOGS", PART, signal.SIGTERM, also_drips=LATE_ABORT))
    before = dict(stage.service.objects.by_key)
    try:
        ended = [check(*outcome) for outcome in stage.run(cases, taking_back_s=60)]
        kept, uploads = set(stage.service.objects.by_key), dict(stage.service.objects.uploads)
    finally:
        stage.service.objects.reset(before)
    assert {each.stderr for each in ended} == {"tieredstore: stopped; 0 of 1 copied; run it again to continue\n"}
    assert (kept, uploads) == (set(before), {})


def test_what_there_was_no_time_to_take_back_is_named(stage: Stage) -> None:
    cases = [
        Case("upload LOGS", PART, signal.SIGINT, also_drips=ABORT),
        Case("upload LOGS", COMPLETE, signal.SIGHUP),
        Case("rm txn -p 0 --segment 605 --yes", Place(Step.BULK), signal.SIGTERM),
    ]
    before = dict(stage.service.objects.by_key)
    try:
        *copies, deleted = [check(*outcome).stderr for outcome in stage.run(cases)]
    finally:
        stage.service.objects.reset(before)
    for copied in copies:
        assert "may have left objects" in copied
        assert "tieredstore rm events -p 0 --segment=" in copied
        assert copied.endswith("tieredstore: stopped; 0 of 1 copied; run it again to continue\n")
    assert deleted.startswith(
        "tieredstore: stopped; no segments deleted; to delete the rest of the segment: "
        "tieredstore rm txn -p 0 --segment="
    )


def test_a_signal_that_is_ignored_stays_so(stage: Stage, commands: ForkedCommands, tmp_path: Path) -> None:
    with FaultyServer(stage.service) as server:
        server.lie(LOG.way())
        settings = write_cloud_settings(tmp_path, server)
        running = commands.start("fetch", "txn", 0, 605, settings=settings, interruptible=False)
        wait_until(lambda: LOG.is_reached(server))
        running.send(signal.SIGINT)
        server.be_honest()
        ended = running.wait(SOON_S)
    assert ended == Ended(0, (TXN / "00000000000000000605.log").read_bytes(), "")


@pytest.mark.parametrize("arguments", ["fetch txn 0 605", "cat txn --json"])
def test_an_output_that_nobody_reads_holds_up_no_end(
    stage: Stage, commands: ForkedCommands, tmp_path: Path, arguments: str
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with FaultyServer(stage.service) as server:
        settings = write_cloud_settings(tmp_path, server)
        running = commands.start(*arguments.split(), settings=settings, stdout=pipe)
        wait_until(lambda: LOG.is_reached(server))
        running.send(signal.SIGTERM)
        ended = running.wait(SOON_S)
    # Accept a report of left-out records, because timing decides how far the read gets before the signal.
    told = ended.stderr if ended is not None and ended.stderr.startswith("tieredstore: left out: ") else ""
    assert ended == Ended(143, b"", told)


def test_a_part_that_kill_9_left_goes_with_the_next_run_of_the_same_file_and_a_living_one_stays(
    stage: Stage, commands: ForkedCommands, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "605.log"
    with FaultyServer(stage.service) as server, FaultyServer(stage.service) as honest:
        server.lie(LOG.way())
        settings = write_cloud_settings(tmp_path, server)
        running = commands.start("fetch", "txn", 0, 605, "-o", target, settings=settings)
        wait_until(lambda: LOG.is_reached(server))
        (part,) = target.parent.iterdir()
        again = ("fetch", "-c", write_cloud_settings(tmp_path, honest), "txn", 0, 605, "-o", target)
        assert tieredstore(*again).stderr == ""
        assert set(target.parent.iterdir()) == {part, target}
        running.send(signal.SIGKILL)
        ended = running.wait(SOON_S)
        assert ended is not None
        assert ended.code == -signal.SIGKILL
        done = tieredstore(*again)
    assert done.stderr == f"tieredstore: removed {part}, left behind by a killed command\n"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.slow
@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_while_the_program_is_being_imported_ends_it_without_a_word(
    tmp_path: Path, signum: signal.Signals
) -> None:
    (tmp_path / "typer.py").write_text("open('started', 'w').close()\nimport time\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command("ls")],
        cwd=tmp_path,
        env=environment(PYTHONPATH=f"{tmp_path}:{REPOSITORY}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:
        wait_until((tmp_path / "started").exists)
        running.send_signal(signum)
        # Without the signal the process would sleep for a minute.
        _, stderr = running.communicate()
    assert (running.returncode, stderr) == (128 + signum, b"")


# Before Python 3.12, a class statement raises RuntimeError in place of the exception.
IMPORTING = """
import signal
from tieredstore.cli.app.running import run
from tieredstore.cli.terminal.progress import tell_if_stopped

class Field:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGTERM)

def command():
    with tell_if_stopped(lambda: "stopped"):
        type("Owner", (), {"field": Field()})
    return 0

run(command)
"""


def test_a_signal_while_a_command_imports_a_module_is_no_bug() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False, env=environment()
    )
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "tieredstore: stopped\n")


# A shell starts background jobs, and so whole test runs, with interrupts ignored; nohup does the same with hangups.
INTERRUPTIBLE = """
import os, signal, sys
for signum in (signal.SIGINT, signal.SIGHUP):
    signal.signal(signum, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.soak
@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("cloud", list(Cloud), ids=lambda cloud: cloud.value)
def test_every_command_ends_soon_wherever_it_waits(cloud: Cloud, signum: signal.Signals, tmp_path: Path) -> None:
    table = [*READING.items(), *WRITING[cloud].items()]
    cases = [Case(words, place, signum) for words, places in table for place in places]
    modules = (MODULES[cloud], "tieredstore.remote", "tieredstore.reading.reader")
    (tmp_path / "commands").mkdir()
    with ForkedCommands(tmp_path / "commands", modules) as commands:
        stage = Stage(cloud, tmp_path, commands)
        before = dict(stage.service.objects.by_key)
        for start in range(0, len(cases), 6):
            # Check all six first, because when one command has ended, others may not have removed their objects yet.
            stderr = "".join([check(*outcome).stderr for outcome in stage.run(cases[start : start + 6])])
            named = SEGMENT_ID.findall(stderr)
            left = set(stage.service.objects.by_key) - set(before)
            if cloud is Cloud.S3:  # Azure and Google drop unfinished parts by themselves
                left |= {upload.key for upload in stage.service.objects.uploads.values()}
            assert [key for key in left if not any(segment_id in key for segment_id in named)] == [], stderr
            assert set(before) <= set(stage.service.objects.by_key), stderr
            stage.service.objects.reset(before)
