"""``ls`` and ``inspect`` on damaged stores."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import ORIGINALS, TXN, store_of, stored_files, tieredstore, write_settings
from tests.support.golden.segments import case_path
from tests.support.paths import GOLDEN
from tests.support.records.disk_segments import write_segments
from tests.support.records.small_segments import ENC
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.cli.terminal import output
from tieredstore.errors import ObjectArchivedError


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_segment_that_lacks_an_object_is_listed_as_incomplete(suffix: str, settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, suffix)[1].unlink()
    listed = tieredstore("ls", "-c", settings, "-p", "all", "--json")
    assert listed.code == 0
    rows, summary = listed.rows
    assert [row["complete"] for row in rows] == [True, False, True]
    assert (summary["segments"], summary["incomplete"], summary["damaged"], summary["holes"]) == (2, 1, 0, 1)
    row = rows[1]
    assert (row["base_offset"], row["missing"]) == (1, [suffix])
    assert row["stored_size"] > 0
    unknown = {name for name, value in row.items() if value is None} - {"damage", "key_id"}
    in_manifest = {"last_offset", "size", "ratio", "compressed", "encrypted", "max_timestamp_ms", "leader_epochs"}
    assert unknown == (in_manifest | {"max_timestamp"} if suffix == "rsm-manifest" else set())
    for arguments in ([], ["single"], ["single", "-p", "0"]):
        shown = tieredstore("ls", "-c", settings, *arguments)
        assert shown.code == 0
        assert shown.stderr.count("\n") == 1
        assert f"{row['segment_id']} of single-0" in shown.stderr
        assert f"cannot be read: no .{suffix}" in shown.stderr
        assert row["segment_id"] not in shown.text


@pytest.mark.parametrize("arguments", [["-p", "all", "--json"], ["--json"], [], ["single", "-p", "0"]])
def test_a_damaged_manifest_is_listed_and_exits_4(arguments: list[str], settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "rsm-manifest")[2].write_bytes(b'{"version":"1"')
    listed = tieredstore("ls", "-c", settings, *arguments)
    assert listed.code == 4
    if arguments == ["-p", "all", "--json"]:
        assert [row["complete"] for row in listed.rows[0]] == [True, True, False]
        assert [bool(row["damage"]) for row in listed.rows[0]] == [False, False, True]
    elif arguments == ["--json"]:
        assert [(row["incomplete"], row["damaged"]) for row in listed.rows[0]] == [(1, 1)]
    else:
        assert "is damaged" in listed.stderr


def test_an_archived_manifest_is_named_and_all_others_are_read(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FilesystemObjectStore.get_small_batch

    def read_others(store: FilesystemObjectStore, keys: Sequence[str], most: int) -> list[Any]:
        error = ObjectArchivedError("restore the object first")
        answers = zip(keys, read(store, keys, most), strict=True)
        return [error if f"{1:020}-" in key else answer for key, answer in answers]

    monkeypatch.setattr(FilesystemObjectStore, "get_small_batch", read_others)
    listed = tieredstore("ls", "-c", settings, "-p", "all", "--json")
    assert [row["damage"] for row in listed.rows[0]] == [None, "restore the object first", None]
    assert (listed.code, "cannot be read: restore the object first" in listed.stderr) == (4, True)
    for command in ("du", "keys list"):
        told = tieredstore(*command.split(), "-c", settings)
        assert (told.code, "1 segment with a damaged or archived manifest: " in told.stderr) == (0, True)
    assert "manifests are damaged or archived" in tieredstore("keys", "list", "key1", "-c", settings).stderr
    assert tieredstore("rm", "single", "-c", settings, "--yes").code == 0
    assert stored_files(tmp_path) == []


def test_an_archived_log_has_an_unknown_first_record(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, read_into = FilesystemObjectStore.get, FilesystemObjectStore.get_into

    def refuse(key: str) -> None:
        if f"/{1:020}-" in key and key.endswith(".log"):
            raise ObjectArchivedError("restore the object first")

    def get(store: FilesystemObjectStore, key: str, *more: Any, **named: Any) -> bytes:
        refuse(key)
        return read(store, key, *more, **named)

    def get_into(store: FilesystemObjectStore, key: str, *more: Any, **named: Any) -> None:
        refuse(key)
        read_into(store, key, *more, **named)

    monkeypatch.setattr(FilesystemObjectStore, "get", get)
    monkeypatch.setattr(FilesystemObjectStore, "get_into", get_into)
    listed = tieredstore("ls", "-c", settings, "-p", "all", "--first-times", "--json")
    assert [row["first_timestamp"] is None for row in listed.rows[0]] == [False, True, False]
    assert (listed.code, "FIRST RECORD of 1 segment is unknown: restore the object" in listed.stderr) == (0, True)


def test_rows_are_sorted_by_number_and_not_by_text(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    for partition in (10, 9, 100):
        (tmp_path / f"a-{partition}").symlink_to(ORIGINALS / "single-0")
    (tmp_path / "a-b-0").symlink_to(ORIGINALS / "single-0")
    for name in ("a-10", "a-9", "a-100", "a-b-0"):
        assert tieredstore("upload", "-c", settings, tmp_path / name).code == 0
    rows = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]
    addresses = [
        (row["topic"], row["topic_id"], row["partition"], row["base_offset"], row["segment_id"]) for row in rows
    ]
    assert len(addresses) == 12
    assert addresses == sorted(addresses)
    assert {row["topic"] for row in tieredstore("ls", "-c", settings, "a", "-p", "all", "--json").rows[0]} == {"a"}
    assert {row["partition"] for row in tieredstore("ls", "-c", settings, "a", "-p", 9, "--json").rows[0]} == {9}


def test_the_table_has_a_line_a_partition_and_totals() -> None:
    shown = tieredstore("ls", "-c", case_path("01-none") / "rsm.properties").clean()
    lines = [line.split() for line in shown.text.splitlines() if line.strip()]
    assert [line[:4] for line in lines if line[0] == "none"] == [["none", part, "0", "…"] for part in ("0", "1")]
    assert lines[-1][:2] == ["total", "4"]
    assert "  2026-01-01 00:00:13  2026-01-01 00:00:26\n" in shown.text


def test_an_empty_store_is_an_empty_list(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    assert tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0] == []
    shown = tieredstore("ls", "-c", settings)
    assert (shown.code, shown.stdout, shown.stderr) == (0, b"", "tieredstore: no segments found\n")


def test_a_wrong_prefix_is_answered_by_one_that_has_segments(tmp_path: Path) -> None:
    store_of(tmp_path, ORIGINALS, more={"key.prefix": "prod/"})
    settings = write_settings(tmp_path, {"key.prefix": "prd/"})
    for arguments in ([], ["-p", "all"]):
        shown = tieredstore("ls", "-c", settings, *arguments)
        assert shown.stderr == (
            "tieredstore: no segments found\n"
            "tieredstore: none under 'prd/'; there are some under 'prod/': correct key.prefix\n"
        )
    named = tieredstore("ls", "-c", settings, "single")
    assert named.code == 3
    assert named.stderr.endswith("none under 'prd/'; there are some under 'prod/'\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("du", 0), ("keys list", 0), ("keys list key1", 3), ("verify", 3), ("gc", 0), ("mirror COPY --dry-run", 0),
        ("du single", 3), ("rm single", 3), ("cat single", 3), ("verify single", 3), ("gc single", 3),
        ("mirror COPY single", 3), ("query 'SELECT * FROM single'", 3), ("fetch single 0 0", 3),
    ],
)  # fmt: skip
def test_every_command_names_the_other_prefix(command: str, code: int, tmp_path: Path) -> None:
    store_of(tmp_path, ORIGINALS, more={"key.prefix": "prod/"})
    settings = write_settings(tmp_path, {"key.prefix": "prd/"})
    (tmp_path / "copy").mkdir()
    shown = tieredstore(*shlex.split(command.replace("COPY", str(tmp_path / "copy"))), "-c", settings)
    assert (shown.code, shown.stderr.count("none under 'prd/'; there are some under 'prod/'")) == (code, 1)
    if command == "mirror COPY --dry-run":
        assert shown.text == "nothing to copy\n"


def test_names_from_the_store_cannot_command_a_terminal(tmp_path: Path, settings: Path) -> None:
    (topic,) = (tmp_path / "store").iterdir()
    topic.rename(topic.with_name(topic.name.replace("single", "sin\x1b[2Jgle")))
    stored_files(tmp_path, "log")[0].unlink()
    shown = tieredstore("ls", "-c", settings)
    assert b"\x1b" not in shown.stdout
    assert "\x1b" not in shown.stderr
    assert "sin\N{REPLACEMENT CHARACTER}[2Jgle" in shown.text


@pytest.mark.parametrize("suffix", ["log", "indexes"])
@pytest.mark.parametrize("change", [-1, 1])
def test_inspect_shows_an_object_of_another_size_as_damage(
    suffix: str, change: int, settings: Path, tmp_path: Path
) -> None:
    path = stored_files(tmp_path, suffix)[0]
    os.truncate(path, path.stat().st_size + change)
    done = tieredstore("inspect", "-c", settings, "single", 0, 0, "--json")
    assert done.code == 4
    (sentence,) = done.rows[0][0]["damage"]
    assert f"{path.stat().st_size} bytes where its manifest says {path.stat().st_size - change}" in sentence
    assert done.stderr == f"tieredstore: {sentence}\n"
    shown = tieredstore("inspect", "-c", settings, "single", 0, 0)
    assert (shown.code, shown.stderr) == (4, done.stderr)


def test_inspect_shows_a_lost_object_as_damage(settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "indexes")[0].unlink()
    done = tieredstore("inspect", "-c", settings, "single", 0, 0, "--json")
    assert done.code == 4
    assert done.rows[0][0]["damage"] == ["damage: the .indexes object is missing under a valid manifest"]
    assert "(no .indexes)" in tieredstore("inspect", "-c", settings, "single", 0, 0).text


def test_inspect_and_ls_and_delete_need_no_key(tmp_path: Path) -> None:
    settings = store_of(tmp_path, TXN, more=ENC)
    keyless = tmp_path / "keyless.properties"
    keyless.write_text(settings.read_text().replace(str(GOLDEN), "/nowhere"))
    assert len(tieredstore("ls", "-c", keyless, "-p", "all", "--json").rows[0]) == 5
    view = tieredstore("inspect", "-c", keyless, "txn", 0, 605, "--json")
    assert view.code == 0
    assert view.rows[0][0]["manifest"]["encryption"] == {"key_id": "key1", "wrapped_key_bytes": 384}
    assert tieredstore("rm", "-c", keyless, "txn", "-p", 0, "--segment", 605, "--yes").code == 0
    tieredstore("fetch", "-c", keyless, "txn", 0, 0).fails(2, "/nowhere")


def test_inspect_knows_a_segment_without_recorded_metadata(settings: Path, tmp_path: Path) -> None:
    manifest = stored_files(tmp_path, "rsm-manifest")[0]
    head, _, _ = manifest.read_bytes().partition(b',"remoteLogSegmentMetadata"')
    manifest.write_bytes(head + b"}")
    done = tieredstore("inspect", "-c", settings, "single", 0, 0, "--json")
    assert (done.code, done.rows[0][0]["metadata"]) == (0, None)
    assert "0 to ?" in tieredstore("inspect", "-c", settings, "single", 0, 0).text
    row = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0][0]
    assert {row[name] for name in ("last_offset", "leader_epochs", "max_timestamp_ms")} == {None}
    assert row["complete"]


def test_json_is_ascii_whatever_the_names(settings: Path, tmp_path: Path) -> None:
    (topic,) = (tmp_path / "store").iterdir()
    topic.rename(topic.with_name(topic.name.replace("single", "größe")))
    listed = tieredstore("ls", "-c", settings, "--json")
    assert listed.stdout.isascii()
    assert {row["topic"] for row in listed.rows[0]} == {"größe"}


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_hole_is_shown_where_it_is(settings: Path, tmp_path: Path) -> None:
    stored_files(tmp_path, "rsm-manifest")[1].unlink()
    partitions = lines_of(tieredstore("ls", "-c", settings).text)
    assert " 0 0 … 0, 2 … 2 2 " in partitions[2]
    segments = lines_of(tieredstore("ls", "-c", settings, "single", "-p", 0).text)
    assert [line.split()[:2] for line in segments[2:5]] == [["0", "0"], ["1", "1"], ["2", "2"]]
    assert segments[3] == "1 1 (hole)"


def test_many_holes_are_counted(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    write_segments(tmp_path / "logs", 11)
    assert tieredstore("upload", "-c", settings, tmp_path / "logs").code == 0
    for manifest in stored_files(tmp_path, "rsm-manifest")[1::2]:
        manifest.unlink()
    assert " 0 … 109, 5 holes " in lines_of(tieredstore("ls", "-c", settings).text)[2]


def test_ids_are_shown_where_nothing_else_tells_rows_apart(settings: Path, tmp_path: Path) -> None:
    (topic,) = (tmp_path / "store").iterdir()
    first, second = topic.name.removeprefix("single-"), "AAAAAAAAAAAAAAAAAAAAAQ"
    assert first not in tieredstore("ls", "-c", settings).text
    assert first in tieredstore("ls", "-c", settings, "--wide").text
    again = tmp_path / "again" / "single-0"
    shutil.copytree(ORIGINALS / "single-0", again)
    (again / "partition.metadata").write_text(f"version: 0\ntopic_id: {second}\n")
    assert tieredstore("upload", "-c", settings, again).code == 0
    for arguments in ([], ["single"], ["single", "-p", 0]):
        shown = tieredstore("ls", "-c", settings, *arguments).text
        assert first in shown
        assert second in shown
    assert "SEGMENT ID" not in shown


def test_upload_and_ls_mean_the_same_by_a_ratio(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, {"compression.enabled": "true"})
    copied = tieredstore("upload", "-c", settings, TXN)
    listed = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]
    for line, row in zip(copied.text.splitlines(), listed, strict=False):
        assert line.endswith(f"ratio {row['ratio']:.2f}")
    stored, _ = tieredstore("upload", "-c", settings, TXN, "--json").rows
    assert [row["stored_size"] for row in stored] == [row["stored_size"] for row in listed]


def test_inspect_says_that_no_broker_copied_it(settings: Path, tmp_path: Path) -> None:
    assert ", not by a broker\n" in tieredstore("inspect", "-c", settings, "single", 0, 0).text
    other = write_settings(tmp_path)
    copied = tieredstore("upload", "-c", other, TXN, "--broker-id", 3)
    assert copied.code == 0
    assert ", by broker 3\n" in tieredstore("inspect", "-c", other, "txn", 0, 605).text


def test_topics_partitions_and_a_window_narrow_a_listing(tmp_path: Path) -> None:
    settings = store_of(tmp_path, ORIGINALS, TXN)
    listed = tieredstore("ls", "-c", settings, "t*", "-p", 0, "--from", 700, "--to", 1300, "--json").rows
    assert [(row["topic"], row["base_offset"]) for row in listed[0]] == [("txn", 605), ("txn", 1209)]
    assert listed[1]["segments"] == 2
    rows, summary = tieredstore("ls", "-c", settings, "single", "txn", "--from", "@1795227106227", "--json").rows
    assert [(row["topic"], row["earliest_offset"], row["segments"]) for row in rows] == [("txn", 1815, 2)]
    assert (summary["partitions"], summary["segments"]) == (1, 2)
    both = tieredstore("ls", "-c", settings, "-p", "all").text.splitlines()
    assert both[0].split()[:3] == ["TOPIC", "OFFSET", "LAST"]
    assert both[-1].startswith("total ")
    alone = tieredstore("ls", "-c", settings, "-p", 1)
    alone.fails(2, "tieredstore: -p and --topic-id select within a topic: name the topic too\n")
    absent = tieredstore("ls", "-c", settings, "txn", "-p", "0-2")
    absent.fails(3, "topic 'txn' has no partitions 1 to 2 in the bucket, only 0")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--until yesterday", "--until compares with brokers: give --bootstrap-server"),
        ("--until 7 --bootstrap-server localhost:1", "--until is 7, an offset: give a time"),
        ("--until soon --bootstrap-server localhost:1", "--until is 'soon', not an offset or a time"),
        ("--until -1h --from 7 --bootstrap-server localhost:1", "leave out --from and --to"),
    ],
)
def test_until_is_a_time_and_needs_brokers(line: str, words: str, settings: Path) -> None:
    tieredstore("ls", "-c", settings, *line.split()).fails(2, words)


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_not_known(settings: Path) -> None:
    words = ("--bootstrap-server", "localhost:1", "-X", "default.api.timeout.ms=1000", "--until", "yesterday")
    done = tieredstore("ls", "-c", settings, *words)
    assert (done.code, done.stdout) == (75, b"")


def test_each_segments_first_and_last_time_are_listed(settings: Path) -> None:
    listed = tieredstore("ls", "-c", settings, "single", "-p", 0, "--first-times", "--json").rows[0]
    alone = tieredstore("ls", "-c", settings, "single", "-p", 0, "--json").rows[0]
    # Each of these segments has one record.
    assert [row["first_timestamp_ms"] for row in listed] == [row["max_timestamp_ms"] for row in alone]
    assert [row["first_timestamp"] for row in listed] == [row["max_timestamp"] for row in listed]
    assert [row.keys() - one.keys() for row, one in zip(listed, alone, strict=True)] == [
        {"first_timestamp", "first_timestamp_ms"}
    ] * len(alone)
    for more in ([], ["-p", 0, "--bootstrap-server", "localhost:1"]):
        tieredstore("ls", "-c", settings, "single", *more, "--first-times").fails(2, "give -p N or -p all, and no")


def test_first_times_are_unknown_without_the_key(tmp_path: Path) -> None:
    settings = store_of(tmp_path, TXN, more=ENC)
    lines = settings.read_text().splitlines()
    for name, kept, why in (
        ("no-ring", lambda line: not line.startswith("encryption"), "the settings have no key pairs"),
        ("no-file", lambda line: True, "/nowhere"),
    ):
        keyless = tmp_path / f"{name}.properties"
        keyless.write_text("\n".join(filter(kept, lines)).replace(str(GOLDEN), "/nowhere"))
        asked = ("ls", "-c", keyless, "txn", "-p", 0, "--first-times")
        shown = tieredstore(*asked)
        assert (shown.code, shown.stderr.count("\n")) == (0, 1)
        assert shown.stderr.startswith("tieredstore: FIRST RECORD of 5 segments is unknown: ")
        assert why in shown.stderr
        assert [line.split()[-3] for line in shown.text.splitlines()[2:7]] == ["-"] * 5
        assert [row["first_timestamp_ms"] for row in tieredstore(*asked, "--json").rows[0]] == [None] * 5


def test_a_damaged_first_batch_is_named_and_exits_4(settings: Path, tmp_path: Path) -> None:
    path = stored_files(tmp_path, "log")[1]
    log = bytearray(path.read_bytes())
    log[-1] ^= 1
    path.write_bytes(log)
    asked = ("ls", "-c", settings, "single", "-p", 0, "--first-times")
    listed = tieredstore(*asked, "--json")
    rows, summary = listed.rows
    assert (listed.code, summary["damaged"], summary["segments"]) == (4, 1, 3)
    assert [row["first_timestamp_ms"] is None for row in rows] == [False, True, False]
    assert rows[1]["segment_id"] in listed.stderr
    assert "the record batch at byte 0 (offset 1) is damaged: its bytes have the CRC" in listed.stderr
    assert tieredstore(*asked).code == 4
    assert tieredstore(*asked[:-1]).code == 0


def test_wide_cuts_no_table_of_a_segment(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = ("inspect", "-c", settings, "single", 0, 0)
    lines = [(*segment, "--chunks", "--wide"), (*segment, "--index", "timestamp", "--wide")]
    in_pipe = [tieredstore(*line).text for line in lines]
    monkeypatch.setattr(output, "terminal_width", lambda: 20)
    assert [tieredstore(*line).text for line in lines] == in_pipe
