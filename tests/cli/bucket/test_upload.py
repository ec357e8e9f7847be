"""``upload``: copied, skipped and ignored files, and the report."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import (
    ORIGINALS,
    TXN,
    Result,
    environment,
    measured_command,
    stored_files,
    tieredstore,
    write_settings,
)
from tests.support.records.small_segments import ENC
from tieredstore.kafka.logdir import FoundSegment, LogSegment, describe
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.ops.copies import shipping
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.copy.writer import CopiedSegment, StoredSizes

SINGLE = "single-0"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return write_settings(tmp_path)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Make a log directory with topics ``single`` and ``txn``."""
    data = tmp_path / "data"
    shutil.copytree(ORIGINALS / SINGLE, data / SINGLE)
    shutil.copytree(TXN, data / "txn-0")
    return data


def codes(done: Result) -> list[str]:
    return [row["code"] for row in done.rows[0]]


def rows(settings: Path) -> Any:
    return tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]


def test_a_second_run_adds_nothing_and_says_so(settings: Path, log_dir: Path, tmp_path: Path) -> None:
    first = tieredstore("upload", "-c", settings, log_dir).clean()
    assert first.text.count("copied     ") == 8
    objects = stored_files(tmp_path)
    second = tieredstore("upload", "-c", settings, log_dir).clean()
    assert second.text.count("skipped    ") == 8
    assert second.text.endswith("\n8 skipped\n")
    for row in rows(settings):
        assert f"committed already as segment {row['segment_id']}" in second.text
    assert stored_files(tmp_path) == objects


def test_a_second_run_does_not_read_the_logs_again(settings: Path, log_dir: Path) -> None:
    assert tieredstore("upload", "-c", settings, log_dir).code == 0
    for log in sorted((log_dir / "txn-0").glob("*.log"))[:-1]:
        log.write_bytes(bytes(log.stat().st_size))  # every reader rejects zeros
    assert tieredstore("upload", "-c", settings, log_dir, "--json").rows[1]["codes"] == {"there": 8}


@pytest.mark.parametrize(
    ("path", "count"), [(".", 8), ("txn-0", 5), (f"{SINGLE}/00000000000000000001.log", 1), ("txn-0/../txn-0", 5)]
)
def test_a_path_is_a_log_dir_a_partition_or_one_log(path: str, count: int, settings: Path, log_dir: Path) -> None:
    done = tieredstore("upload", "-c", settings, log_dir / path, "--json")
    assert done.code == 0
    assert codes(done) == ["copied"] * count
    assert len(rows(settings)) == count


def test_a_relative_path_finds_the_broker_id(settings: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (log_dir / "meta.properties").write_text("version=1\nnode.id=17\n")
    monkeypatch.chdir(log_dir / SINGLE)
    assert tieredstore("upload", "-c", settings, ".").code == 0
    assert tieredstore("inspect", "-c", settings, "single", 0, 0, "--json").rows[0][0]["metadata"]["broker_id"] == 17


@pytest.mark.parametrize(
    ("meta", "options", "expected"),
    [
        (None, [], -1),
        ("version=0\nbroker.id=5\n", [], 5),
        ("version=1\nnode.id=6\n", [], 6),
        ("version=1\nnode.id=6\n", ["--broker-id=7"], 7),
        ("version=1\n", [], -1),
    ],
)
def test_the_broker_id_is_recorded(
    meta: str | None, options: list[str], expected: int, settings: Path, log_dir: Path
) -> None:
    if meta is not None:
        (log_dir / "meta.properties").write_text(meta)
    assert tieredstore("upload", "-c", settings, log_dir / SINGLE, *options).code == 0
    metadata = tieredstore("inspect", "-c", settings, "single", 0, 0, "--json").rows[0][0]["metadata"]
    assert metadata["broker_id"] == expected
    assert metadata["event_timestamp_ms"] > 1_700_000_000_000
    assert metadata["txn_idx_empty"] is True


def test_dry_run_writes_nothing_and_needs_no_key(log_dir: Path, tmp_path: Path) -> None:
    settings = write_settings(tmp_path, {name: "absent" if "file" in name else text for name, text in ENC.items()})
    done = tieredstore("upload", "-c", settings, log_dir, "--dry-run", "--json")
    assert (done.code, codes(done), done.rows[1]["planned"]) == (0, ["copied"] * 8, 8)
    assert stored_files(tmp_path) == []
    assert tieredstore("upload", "-c", settings, log_dir, "--dry-run").text.endswith("\n8 would be copied\n")


def test_json_tells_what_ls_tells(settings: Path, log_dir: Path) -> None:
    copied, summary = tieredstore("upload", "-c", settings, log_dir, "--json").rows
    for outcome, row in zip(copied, rows(settings), strict=True):
        assert outcome["stored_size"] == row["stored_size"]
        assert [outcome[name] for name in ("topic", "topic_id", "partition", "last_offset", "segment_id", "size")] == [
            row[name] for name in ("topic", "topic_id", "partition", "last_offset", "segment_id", "size")
        ]
    assert (summary["done"], summary["size"]) == (8, sum(row["size"] for row in rows(settings)))


def test_a_segment_that_cannot_be_copied_does_not_stop_the_next(settings: Path, log_dir: Path) -> None:
    (log_dir / "txn-0" / "00000000000000000605.timeindex").unlink()
    log = log_dir / "txn-0" / "00000000000000001815.log"
    log.write_bytes(log.read_bytes()[:-7])
    done = tieredstore("upload", "-c", settings, log_dir)
    assert done.code == 2
    assert done.stderr.count("\n") == 2
    assert "failed     txn-0 at offset 605" in done.stderr
    assert "failed     txn-0 at offset 1815" in done.stderr
    assert "\n6 copied, 2 failed (" in done.text
    assert [row["base_offset"] for row in rows(settings)] == [0, 1, 2, 0, 1209, 2420]


def test_the_active_segment_is_left_alone(settings: Path, log_dir: Path) -> None:
    shutil.copy(log_dir / SINGLE / "00000000000000000002.log", log_dir / SINGLE / "00000000000000000003.log")
    for suffix in ("index", "timeindex"):
        (log_dir / SINGLE / f"00000000000000000003.{suffix}").write_bytes(bytes(1200))
    done = tieredstore("upload", "-c", settings, log_dir / SINGLE, "--json")
    assert (done.code, codes(done)) == (0, ["copied", "copied", "copied", "active"])
    assert done.rows[0][-1]["reason"] == "the broker may still append to the segment"
    assert "1 active" in tieredstore("upload", "-c", settings, log_dir / SINGLE).text


def test_segments_that_kafka_marked_for_deletion_are_named_and_left_alone(settings: Path, log_dir: Path) -> None:
    (log_dir / SINGLE).rename(log_dir / f"{SINGLE}.0123456789abcdef0123456789abcdef-delete")
    done = tieredstore("upload", "-c", settings, log_dir)
    assert done.code == 0
    assert f"left alone {log_dir / SINGLE}.0123456789abcdef0123456789abcdef-delete: " in done.text
    assert codes(tieredstore("upload", "-c", settings, log_dir, "--json")).count("left_alone") == 1


def test_a_segment_of_other_leader_epochs_or_of_another_end_is_another_one(settings: Path, log_dir: Path) -> None:
    single = log_dir / SINGLE
    assert tieredstore("upload", "-c", settings, single).code == 0
    for path in single.glob("00000000000000000001.*"):
        path.unlink()  # now the first segment reaches to the end of the deleted second one
    assert codes(tieredstore("upload", "-c", settings, single, "--json")) == ["copied", "there"]
    assert sorted(row["last_offset"] for row in rows(settings) if row["base_offset"] == 0) == [0, 1]
    (single / "leader-epoch-checkpoint").write_text("0\n1\n9 0\n")
    assert codes(tieredstore("upload", "-c", settings, single, "--json")) == ["copied"] * 2


@pytest.mark.parametrize(
    ("suffix", "is_told"), [("log", True), ("indexes", True), ("rsm-manifest", False), ("damaged", True)]
)
def test_a_stored_segment_that_is_not_whole_is_copied_anew(
    suffix: str, is_told: bool, settings: Path, tmp_path: Path
) -> None:
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    if suffix == "damaged":
        stored_files(tmp_path, "rsm-manifest")[1].write_bytes(b"")
    else:
        stored_files(tmp_path, suffix)[1].unlink()
    done = tieredstore("upload", "-c", settings, ORIGINALS, "--json")
    assert codes(done) == ["there", "copied", "there"]
    assert ("is treated as not copied" in done.stderr) == is_told
    assert [row["base_offset"] for row in rows(settings) if row["complete"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "code"), [("StoreUnavailableError", 75), ("AccessDeniedError", 6), ("StoreError", 6), ("ConfigError", 2)]
)
def test_a_store_that_fails_stops_the_run(
    error: str, code: int, log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write_settings(tmp_path, {"storage.backend.class": "tests.support.cli.cli_stores:FailingPuts"})
    monkeypatch.setenv("FAILING_PUTS", f"{error} 4")
    done = tieredstore("upload", "-c", settings, log_dir, "--json")
    assert done.code == code
    assert codes(done) == ["copied", "failed"] + ["not_tried"] * 6
    cause = "writing was denied: " if error == "AccessDeniedError" else ""
    assert done.stderr == f"tieredstore: failed     single-0 at offset 1: {cause}no puts any more\n"
    assert [row["complete"] for row in rows(write_settings(tmp_path))] == [True]


@pytest.mark.parametrize("path", ["absent", "store.properties"])
def test_a_path_that_holds_no_segments_is_an_error(path: str, settings: Path, tmp_path: Path) -> None:
    tieredstore("upload", "-c", settings, tmp_path / path).fails(2, f"tieredstore: {tmp_path / path} is ")


def test_without_a_closed_segment_there_is_nothing_to_upload(settings: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    tieredstore("upload", "-c", settings, empty).fails(
        2, f"tieredstore: nothing to upload in {empty}: no closed segment, and no folder TOPIC-PARTITION"
    )
    (empty / "meta.properties").write_text("broker.id=1\n")  # a new broker's
    nothing = f"nothing to upload in {empty}: no closed segment"
    assert tieredstore("upload", "-c", settings, empty).clean().text == f"{nothing}\n"
    active = empty / "orders-0" / "00000000000000000000.log"
    active.parent.mkdir()
    active.write_bytes(b"")
    (active.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {Uuid.random()}\n")
    (active.parent / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert tieredstore("upload", "-c", settings, empty).clean().text.splitlines()[-1] == f"{nothing} (1 active)"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("upload", TXN), ("fetch", "txn", 0, 605)])
def test_a_terminal_sees_a_bar_and_stdout_does_not(
    arguments: tuple[object, ...], settings: Path, tmp_path: Path
) -> None:
    if arguments[0] == "fetch":
        assert tieredstore("upload", "-c", settings, TXN).code == 0
    terminal, stderr = pty.openpty()
    with (tmp_path / "stdout").open("wb") as stdout:
        running = subprocess.Popen(
            measured_command(*arguments, "-c", settings), stdout=stdout, stderr=stderr, env=environment(TERM="xterm")
        )
    os.close(stderr)
    shown = read_terminal(terminal)
    assert running.wait(120) == 0
    assert str(arguments[0]).encode() in shown
    written = (tmp_path / "stdout").read_bytes()
    if arguments[0] == "fetch":
        assert written == (TXN / "00000000000000000605.log").read_bytes()
    else:
        assert written.count(b"copied     ") == 5
        assert b"\x1b" not in written


def read_terminal(terminal: int) -> bytes:
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the terminal's other end was closed
            piece = b""
        if not piece:
            os.close(terminal)
            return shown
        shown += piece


def test_a_segment_that_the_broker_deletes_meanwhile_fails_alone(
    settings: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe_and_lose(on_disk: FoundSegment, topic_id: Uuid | None = None) -> LogSegment:
        segment = describe(on_disk, topic_id)
        if on_disk.base_offset == 1:
            on_disk.path("log").unlink()
        return segment

    monkeypatch.setattr(shipping, "describe", describe_and_lose)
    done = tieredstore("upload", "-c", settings, log_dir / SINGLE, "--json")
    assert (done.code, codes(done)) == (2, ["copied", "failed", "copied"])
    assert "00000000000000000001.log is missing" in done.stderr


def test_a_given_topic_id_stands_in_for_a_missing_partition_metadata(settings: Path, log_dir: Path) -> None:
    (log_dir / SINGLE / "partition.metadata").unlink()
    refused = tieredstore("upload", "-c", settings, log_dir / SINGLE)
    assert refused.code != 0
    assert "partition.metadata" in refused.text + refused.stderr
    topic_id = "bG9nh4bAQgeQott-WhQBoA"
    for status in ("copied", "there"):
        done = tieredstore("upload", "-c", settings, log_dir / SINGLE, "--topic-id", topic_id, "--json")
        assert (done.code, codes(done)) == (0, [status] * 3)
    assert {row["topic_id"] for row in rows(settings)} == {topic_id}


def test_an_old_log_directory_is_told_once_a_partition_and_names_the_option(settings: Path, log_dir: Path) -> None:
    for partition in (SINGLE, "txn-0"):
        (log_dir / partition / "partition.metadata").unlink()
    refused = tieredstore("upload", "-c", settings, log_dir)
    assert (refused.code, refused.text) == (2, "8 failed\n")
    first, second, third, fourth = refused.stderr.splitlines()
    assert first == (
        f"tieredstore: failed     single-0 at offset 0: {log_dir / SINGLE / 'partition.metadata'} is missing, and no "
        "segment of single-0 can be copied without it; brokers before Kafka 2.8 did not write this file: upload "
        f"{log_dir / SINGLE} by itself with its topic id (--topic-id, which kafka-topics --describe shows)"
    )
    assert second == "tieredstore: failed     single-0 at offset 1 to 2: the same (2 more segments)"
    assert third.startswith("tieredstore: failed     txn-0 at offset 0: ")
    assert fourth == "tieredstore: failed     txn-0 at offset 605 to 2420: the same (4 more segments)"


def test_errors_that_differ_are_all_told(settings: Path, log_dir: Path) -> None:
    for log in sorted((log_dir / "txn-0").glob("*.log"))[1:3]:
        log.with_suffix(".index").unlink()
    refused = tieredstore("upload", "-c", settings, log_dir / "txn-0")
    assert [line.count("has no file") for line in refused.stderr.splitlines()] == [1, 1]


def test_one_topic_id_is_not_given_to_several_topics(settings: Path, log_dir: Path) -> None:
    tieredstore("upload", "-c", settings, log_dir, "--topic-id", "bG9nh4bAQgeQott-WhQBoA").fails(
        2,
        "a topic id belongs to one topic, but 2 topics were found (single, txn): name one of them",
    )
    assert rows(settings) == []


def test_an_interrupted_copy_says_what_was_done(settings: Path, log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tieredstore("upload", "-c", settings, log_dir / SINGLE).code == 0

    def copy_one(
        self: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, *_: object, **__: object
    ) -> CopiedSegment:
        if metadata.start_offset:
            raise KeyboardInterrupt
        return CopiedSegment(StoredSizes(1, 1, 1), None)

    monkeypatch.setattr(RemoteStorageManager, "copy_segment", copy_one)
    stopped = tieredstore("upload", "-c", settings, log_dir)
    assert (stopped.code, stopped.stderr) == (
        130,
        "tieredstore: stopped; 1 of 8 copied, 3 skipped; run it again to continue\n",
    )
