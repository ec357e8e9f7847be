"""JSON output and exit codes of ``pipeline``; the JSON has everything that the text output shows."""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import Result, spawn, tieredstore
from tests.support.pipelines.pipeline_runs import listed, verify_output
from tests.support.pipelines.secor_files import sequence_file
from tests.support.servers.process import free_port
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.cli.terminal.output import human_time
from tieredstore.model import human_bytes
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import open_parts
from tieredstore.pipelines.transforming import Message

TRANSFORMER = "secor__message__transformer__class"


def thirds(message: Message) -> Message | None:
    """Reject a third of the messages for one of two reasons, drop a third, and file a third."""
    number = number_of(message)
    if number % 6 == 0:
        raise ValueError("even")
    if number % 3 == 0:
        raise KeyError("odd")
    return message if number % 3 == 1 else None


def halves(message: Message) -> Message | None:
    """Reject messages with even numbers, and file half of the others."""
    if number_of(message) % 2 == 0:
        raise ValueError("even")
    return message if number_of(message) % 4 == 1 else None


def number_of(message: Message) -> int:
    assert message.value is not None
    return int(message.value.rpartition(b"@")[2])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with closing(Kept(tmp_path)) as kept:
        kept.write(12, partitions=(0,))
        yield kept


TOTALS: dict[str, Any] = {
    "planned": 0,
    "done": 0,
    "kept": 0,
    "failed": 0,
    "stored_size": 0,
    "codes": {},
    "dry_run": False,
    "stays": [],
}
"""Summary of a command that has nothing to do."""
SAME = ("status", "code", "topic", "topic_id", "partition", "base_offset", "last_offset", "records", "stored_size")
"""Fields of a window that are the same whichever command wrote it."""


def rows(done: Result, code: int = 0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON rows of the output, and its final summary."""
    assert done.code == code, done
    *lines, last = [json.loads(line) for line in done.text.splitlines()]
    return lines, last["summary"]


def by(transformer: str) -> dict[str, str]:
    return {TRANSFORMER: f"{__name__}:{transformer}"}


def test_a_full_disk_for_temporary_files_is_one_sentence(kept: Kept) -> None:
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    show = "show", *listed(kept.store), "-c", file
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        refused = tieredstore(*show)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused.fails(2, "a local or temporary file cannot be written: File too large: free space, or set TMPDIR")
    assert tieredstore(*show).code == 0


def test_a_run_counts_the_same_in_both(kept: Kept) -> None:
    text = tieredstore("pipeline", "run", "--once", kept.file(**by("thirds"))).text
    line, sums = text.splitlines()
    assert line == "orders-0 0 … 11: 4 records in 2 files, 4 dropped, 4 quarantined"
    assert re.fullmatch(r"4 records in 2 new files \(\S+ \w+\)", sums)
    other = kept.file(**by("thirds"), secor__generation="2")
    (window,), summary = rows(tieredstore("pipeline", "run", "--once", other, "--json"))
    assert (window["records"], window["filtered"], window["quarantined"]) == (4, 4, 4)
    sizes = {info.key: info.size for info in kept.store.list(ROOT)}
    stored = sum(sizes[key] for key in window["output_keys"])
    counts = {"records": 4, "filtered": 4, "quarantined": 4, "files": 2, "stored_size": stored}
    assert summary == {**TOTALS, "done": 1, "codes": {"written": 1}, **counts}
    backfill = "pipeline", "backfill", kept.file(**by("thirds")), "orders", "--generation", 7, "--yes", "--json"
    (again,), sums_again = rows(tieredstore(*backfill))
    assert sums_again == summary
    assert (again["action"], window["action"]) == ("backfill", "run")
    assert [again[name] for name in SAME] == [window[name] for name in SAME]


def test_a_run_of_several_pipelines_has_one_summary(kept: Kept) -> None:
    first = kept.file().rename(kept.folder / "first.properties")
    second = kept.file(secor__generation="2")
    windows, summary = rows(tieredstore("pipeline", "run", "--once", first, second, "--json"))
    assert [(one["topic"], one["base_offset"], one["last_offset"]) for one in windows] == [("orders", 0, 11)] * 2
    assert (summary["done"], summary["records"], summary["files"]) == (2, 24, 2)


def test_a_wrong_file_is_refused_before_spark_starts(tmp_path: Path) -> None:
    refused = tieredstore("pipeline", "run", tmp_path / "absent.properties")
    refused.fails(2, "there is no such settings file")
    assert refused.stderr.startswith("tieredstore: ")


def test_status_has_seconds_while_records_wait_for_the_first_batch(kept: Kept) -> None:
    file = kept.file()
    (row,), summary = rows(tieredstore("pipeline", "status", file, "--json"))
    assert (row["lag"], row["records"], summary["lag"]) == (12, 0, 12)
    assert row["lag_seconds"] > 0
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (row,), _ = rows(tieredstore("pipeline", "status", file, "--json"))
    assert (row["lag"], row["lag_seconds"]) == (0, 0)


def test_gc_deletes_nothing_by_a_clock_that_is_a_day_ahead(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    draft = kept.output / ROOT / TOPIC / ".~tieredstore-running"
    draft.write_bytes(b"of a running task")
    now_ms, ahead_h = FilesystemObjectStore.now_ms, 25
    monkeypatch.setattr(FilesystemObjectStore, "now_ms", lambda store: now_ms(store) + ahead_h * 3_600_000)
    refused = tieredstore("pipeline", "gc", file, "--yes")
    assert (refused.code, draft.exists()) == (6, True)
    assert "is 25.0 h ahead of this machine's, so files of running tasks may look old" in refused.stderr
    ahead_h = 23
    assert (tieredstore("pipeline", "gc", file, "--yes").code, draft.exists()) == (0, True)


def test_changes_tell_sizes(kept: Kept) -> None:
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (change,), summary = rows(tieredstore("pipeline", "status", file, "--after", -1, "--json"))
    assert change["sizes"] == [kept.store.head(key).size for key in change["output_keys"]]
    assert summary["changes"] == 1
    heading, _, row = tieredstore("pipeline", "status", file, "--after", -1).text.splitlines()
    assert heading.split() == ["ENTRY", "TIME", "KIND", "FILES", "DELETED", "DIRECTORIES", "SIZE"]
    number, day, time, *counts = row.split()
    assert [number, day, time] == [str(change["commit"]), *human_time(change["committed_ms"]).split()]
    assert counts[:4] == ["batch", str(len(change["output_keys"])), "0", "0"]
    listed = tieredstore("pipeline", "status", file, "--files").text.splitlines()
    assert [line.split()[2] for line in listed] == change["output_keys"]


def test_the_last_number_goes_on_where_changes_ended(kept: Kept) -> None:
    """The summary's number counts entries without changes too."""
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (change,), summary = rows(tieredstore("pipeline", "status", file, "--after", -1, "--json"))
    _, known = rows(tieredstore("pipeline", "status", file, "--json"))
    assert known == {"partitions": 1, "lag": 0, "commit": summary["commit"]}
    assert summary["commit"] > change["commit"]
    for after in (change["commit"], summary["commit"]):
        assert rows(tieredstore("pipeline", "status", file, "--after", after, "--json")) == (
            [], {"changes": 0, "commit": summary["commit"]},
        )  # fmt: skip
    shown = tieredstore("pipeline", "status", file, "--after", change["commit"])
    assert shown.text == f"no changes to the output after entry {change['commit']}\n"
    kept.write(3, partitions=(0,))
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (change,), later = rows(tieredstore("pipeline", "status", file, "--after", summary["commit"], "--json"))
    assert summary["commit"] < change["commit"] < later["commit"]


@pytest.mark.parametrize("transformer", ["thirds", "halves"])
def test_redriving_tells_of_what_stays_bad_where_and_why(kept: Kept, transformer: str) -> None:
    assert tieredstore("pipeline", "run", "--once", kept.file(**by("thirds"))).code == 0
    (before,) = [info.key for info in kept.store.list(f"{ROOT}_tieredstore/kept/1/quarantine/")]
    again = "pipeline", "backfill", kept.file(**by(transformer)), "--bad-messages"
    redrive = *again, "--yes"
    planned = f"would be parsed: orders-0 0 … 9: 4 messages in {before}"
    assert tieredstore(*again).text.splitlines() == [
        planned, "4 messages in 1 file would be parsed", "nothing was parsed: --yes does it",
    ]  # fmt: skip
    (plan,), plans = rows(tieredstore(*again, "--json"))
    assert (plan["status"], plan["quarantine_key"], plan["quarantined"]) == ("planned", before, 4)
    assert (plans["planned"], plans["dry_run"], plans["quarantined"]) == (1, True, 4)
    text = tieredstore(*redrive).text.splitlines()
    if transformer == "thirds":
        assert text[0] == f"orders-0 0 … 9: no messages filed, 4 still bad in {before}"
        assert [re.sub(": .*", "", line) for line in text[1:3]] == ["  2 from offset 0 on", "  2 from offset 3 on"]
        assert text[3:] == ["1 file parsed again: no messages filed; 4 still bad"]
        (row,), summary = rows(tieredstore(*redrive, "--json"))
        assert (row["quarantine_key"], row["output_keys"], row["quarantined"]) == (before, [], 4)
        assert [(why["quarantined"], why["first_offset"]) for why in row["reasons"]] == [(2, 0), (2, 3)]
        assert all(f": {why['reason']}" in line for why, line in zip(row["reasons"], text[1:3], strict=True))
        assert (row["status"], row["code"]) == ("kept", "still_bad")
        sums = {"records": 0, "filtered": 0, "quarantined": 4, "files": 0}
        assert summary == {**TOTALS, "kept": 1, "codes": {"still_bad": 1}, **sums}
        return
    (after,) = [info.key for info in kept.store.list(f"{ROOT}_tieredstore/kept/1/quarantine/")]
    assert text[0] == f"orders-0 0 … 9: 1 message filed, 1 dropped, 2 still bad in {after}"
    assert text[2:] == ["1 file parsed again: 1 message filed; 1 dropped; 2 still bad"]
    assert after != before
    kept.file()
    text = tieredstore(*redrive).text.splitlines()
    assert text == ["orders-0 0 … 6: 2 messages filed", "1 file parsed again: 2 messages filed; none still bad"]
    assert tieredstore(*redrive).text == "no quarantined messages\n"
    sums = {"records": 0, "filtered": 0, "quarantined": 0, "files": 0}
    assert rows(tieredstore(*redrive, "--json")) == ([], {**TOTALS, **sums})


def test_an_output_of_which_there_is_nothing_is_not_as_it_was_committed(kept: Kept) -> None:
    file = kept.file()
    for options in ((), ("--json",), ("--sizes-only",)):
        done = tieredstore("pipeline", "verify", file, *options)
        assert (done.code, done.text) == (3, "")
        assert re.search(r"generation 1 of kept has no commit log and no files below out/.*pipeline\.name", done.stderr)
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    *read, last = tieredstore("pipeline", "verify", file).text.splitlines()
    assert re.fullmatch(r"1 of 1 file read in full \((\S+ \w+) of \1\)", read[0])
    assert (read[1:], last) == (["records were not compared with the source (--against)"], "no problems found")
    assert tieredstore("pipeline", "verify", kept.file(pipeline__name="others", secor__generation="2")).code == 3
    whose = tieredstore("pipeline", "verify", kept.file(pipeline__name="others"))
    assert whose.code == 2
    assert "belongs to the pipeline 'kept'" in whose.stderr


def test_verify_says_what_it_has_read_and_what_not(kept: Kept) -> None:
    kept.write(5, partitions=(0,))
    file = kept.file(secor__max__file__size__bytes="10", max__file__records="6")
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    sizes = [info.size for info in kept.store.list(f"{ROOT}orders/")]
    shown = tieredstore("pipeline", "verify", file, "--sizes-only").text.splitlines()
    assert shown[0].startswith(f"0 of {len(sizes)} files read in full (0 B of ")
    assert shown[1] == "names and sizes were compared with the commit log"
    facts = {"commit_log": True, "files": len(sizes), "stored_size": sum(sizes), "problems": 0}
    read = {"read_files": len(sizes), "read_size": sum(sizes)}
    assert rows(tieredstore("pipeline", "verify", file, "--json")) == ([], {**facts, **read})
    nothing = {"read_files": 0, "read_size": 0}
    assert rows(tieredstore("pipeline", "verify", file, "--json", "--sizes-only")) == ([], {**facts, **nothing})
    first = next(iter(kept.store.list(f"{ROOT}orders/")))
    kept.store.put(first.key, b"x")
    done = tieredstore("pipeline", "verify", file, "--json")
    (problem,), summary = rows(done, code=4)
    assert (problem["output_key"], summary["problems"]) == (first.key, 1)
    assert (summary["read_files"], summary["read_size"]) == (len(sizes) - 1, sum(sizes) - first.size)


def test_a_comparison_with_a_bucket_that_has_none_of_the_records_is_no_success(kept: Kept, tmp_path: Path) -> None:
    assert tieredstore("pipeline", "run", "--once", kept.file()).code == 0
    compared = tieredstore("pipeline", "verify", kept.file(), "--against", "bucket").clean()
    assert compared.text.startswith("12 offsets compared with the bucket; 0 not in the bucket")
    (tmp_path / "empty").mkdir()
    empty = kept.file(storage__root=str(tmp_path / "empty"))
    done = tieredstore("pipeline", "verify", empty, "--against", "bucket")
    assert (done.code, done.text.splitlines()[0]) == (3, "no offsets compared with the bucket; 12 not in the bucket")
    assert "no record was compared: the bucket has none of the 12 written offsets" in done.stderr
    assert "no problems found" not in done.text


def test_files_without_a_commit_log_are_never_all_that_there_is_to_be(kept: Kept) -> None:
    data = sequence_file({100: b"{}", 103: b"{}"})
    kept.store.put(f"{ROOT}orders/dt=1/7_0_{100:020}", data)
    file = kept.file(
        pipeline__name="secor", secor__generation="7", secor__file__reader__writer__factory="sequencefile",
    )  # fmt: skip
    done = tieredstore("pipeline", "verify", file)
    assert done.code == 0
    assert done.text.splitlines() == [
        f"1 of 1 file read in full ({len(data)} B of {len(data)} B)",
        "there is no commit log, so missing files cannot be detected",
        "records were not compared with the source (--against)",
        "no problems found",
    ]
    _, said = rows(tieredstore("pipeline", "verify", file, "--json"))
    assert (said["commit_log"], said["read_files"], said["files"]) == (False, 1, 1)


def test_a_replacement_shows_its_plan_and_status_who_holds_what_gave_way(kept: Kept) -> None:
    """The only window is replaced as a whole, although only a part of its offsets was requested."""
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (key,) = listed(kept.store)
    size = kept.store.head(key).size
    before = {info.key: kept.store.get(info.key) for info in kept.store.list("")}
    line = ("pipeline", "backfill", file, "orders", "--from", 3, "--to", 5, "--generation", 2)
    shown = tieredstore(*line, "--replace", 1)
    assert shown.text.splitlines() == [
        "would be written: orders-0 0 … 11 (requested: 3 … 4)",
        f"would be deleted: {key}",
        f"1 window would be written; 1 file would be deleted ({human_bytes(size)})",
        "nothing was written: --yes does it",
    ]
    (window, going), summary = rows(tieredstore(*line, "--replace", 1, "--json"))
    assert {name: value for name, value in window.items() if value not in (None, [])} == {
        "action": "backfill", "status": "planned", "code": "written", "topic": "orders",
        "topic_id": window["topic_id"], "partition": 0, "base_offset": 0, "last_offset": 11,
        "asked_first_offset": 3, "asked_last_offset": 4,
    }  # fmt: skip
    assert (going["status"], going["code"], going["name"], going["stored_size"]) == ("planned", "deleted", key, size)
    assert going.keys() == window.keys()
    assert (summary["codes"], summary["stored_size"]) == ({"deleted": 1, "written": 1}, size)
    assert summary["dry_run"]
    assert {info.key: kept.store.get(info.key) for info in kept.store.list("")} == before
    (window, gone), summary = rows(tieredstore(*line, "--replace", 1, "--yes", "--json"))
    assert (window["status"], window["records"], window["last_offset"]) == ("done", 12, 11)
    assert gone == {**going, "status": "done"}
    assert (summary["codes"], summary["files"]) == ({"deleted": 1, "written": 1}, 1)
    assert [key.rpartition("/")[2][:4] for key in listed(kept.store)] == ["2_0_"]
    again = tieredstore(*line, "--replace", 1).text.splitlines()
    assert again == ["nothing to write"]
    table, note = tieredstore("pipeline", "status", file).text.strip().splitlines()[-2:]
    assert table.split()[:2] == ["orders", "0"]
    assert table.count("by 2") == 2
    assert note == "orders-0: offsets 0 to 11 were replaced by generation 2"
    (row,), _ = rows(tieredstore("pipeline", "status", file, "--json"))
    assert row["replaced"] == [{"generation": 2, "first_offset": 0, "last_offset": 11}]
    other = tieredstore("pipeline", "backfill", file, "orders", "--generation", 3, "--replace", 1, "--yes")
    assert other.code == 2
    assert "offsets 0 to 11 of orders-0 are held by generation 2" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["orders"], "pipeline backfill needs FILE TOPIC --generation N, or FILE --bad-messages"),
        (["--generation", 2], "pipeline backfill needs FILE TOPIC --generation N, or FILE --bad-messages"),
        (["--bad-messages", "orders"], "--bad-messages parses all quarantined messages"),
        (["--bad-messages", "--generation", 2], "--bad-messages parses all quarantined messages"),
        (["--bad-messages", "--from", 0], "--bad-messages parses all quarantined messages"),
        (
            ["orders", "--generation", 2, "--from", 5, "--to", 3],
            "--from 5 is after --to 3: the window ends before it begins",
        ),
        (["orders", "--generation", 2, "--from", "soon"], "--from is 'soon', not an offset or a time"),
        (["orders", "--generation", 2, "-p", "x"], "-p is 'x': it must have the form 3, 0,2 or 4-7"),
    ],
)
def test_what_a_backfill_cannot_do_is_said_before_anything_is_opened(
    arguments: list[object], sentence: str, tmp_path: Path
) -> None:
    settings = tmp_path / "kept.properties"
    settings.write_text(
        "pipeline.name=kept\noutput.storage.backend.class=filesystem\noutput.storage.root=/nowhere\n"
        "storage.backend.class=filesystem\nstorage.root=/nowhere\n"
    )
    done = tieredstore("pipeline", "backfill", settings, *arguments)
    assert (done.code, done.text) == (2, "")
    assert sentence in done.stderr


def test_show_has_the_records_of_a_file_and_where_they_came_from(kept: Kept) -> None:
    file = kept.file()
    assert tieredstore("pipeline", "run", "--once", file).code == 0
    (key,) = listed(kept.store)
    for options in ((), ("--records",)):
        records = tieredstore("show", key, "-c", file, "--json", *options).lines
        assert [(one["topic"], one["partition"], one["offset"]) for one in records] == [
            ("orders", 0, offset) for offset in range(12)
        ]
    assert [one["offset"] for one in tieredstore("show", key, "-c", file, "-n", 2, "--json").lines] == [0, 1]
    (origin,), summary = rows(tieredstore("show", key, "-c", file, "--sources", "--backup", file, "--json"))
    assert origin == {
        "file": key, "topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 11, "committed": True,
        "backup_keys": [key], "segment_names": origin["segment_names"],
    }  # fmt: skip
    assert len(origin["segment_names"]) == 1
    assert summary == {"files": 1, "entries": 1, "failed": 0}
    for options in ((), ("--sources",)):
        done = tieredstore("show", "out/orders/none", "-c", file, *options)
        assert (done.code, done.text) == (3, "")
        assert "is not named like an output file" in done.stderr


def test_status_names_a_loss_for_as_long_as_runs_end_with_it(kept: Kept) -> None:
    file = kept.file()
    kept.write(8, partitions=(0,))
    kept.write(8, partitions=(0,))
    kept.bucket.delete(kept.segments[1])
    for _ in range(2):
        assert tieredstore("pipeline", "run", "--once", file).code == 3
        done = tieredstore("pipeline", "status", file)
        assert done.code == 0
        assert "offsets 12 to 19 of orders-0 are not available" in done.stderr
        (row,), _ = rows(tieredstore("pipeline", "status", file, "--json"))
        assert row["next_offset"] == 12
        assert "offsets 12 to 19" in row["problem"]
    assert kept.offsets() == {("orders", 0): list(range(12))}


def test_damage_ends_a_run_with_4_and_what_lies_before_it_is_written(kept: Kept) -> None:
    kept.write(8, partitions=(0,))
    (log,) = kept.folder.rglob(f"*{kept.segments[1].remote_log_segment_id.id}.log")
    log.write_bytes(log.read_bytes()[:-5] + b"other")
    for _ in range(2):
        assert tieredstore("pipeline", "run", "--once", kept.file()).code == 4
        assert kept.offsets() == {("orders", 0): list(range(12))}


FILE = "EXIT_CODES_FILE"
"""Environment variable with the pipeline's settings file."""


def taken_over(message: Message) -> Message:
    """Start another driver while the first record is transformed, if the environment names the settings file."""
    if message.offset == 0 and FILE in os.environ:
        pipeline = load_pipeline(Path(os.environ[FILE]))
        with open_parts(pipeline) as parts:
            log = commit_log_of(pipeline, parts.store)
            log.read()
            log.append("begin", "another")
    return message


@pytest.mark.slow
def test_too_many_bad_messages_are_4_and_nothing_of_them_appears(kept: Kept) -> None:
    file = kept.file(secor__message__parser__class="json", secor__consumer__max_bad_messages="7")
    done = spawn("pipeline", "run", "--once", file)
    assert done.code == 4, done
    assert re.search(r"12 messages of a batch are bad.*max_bad_messages is 7.*orders-0 at 0", done.stderr)
    assert listed(kept.store) == []


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["run", "backfill"])
def test_another_process_that_takes_over_is_5_and_what_it_left_is_written_by_the_next(kept: Kept, verb: str) -> None:
    generation = "1" if verb == "run" else "7"
    file = kept.file(
        secor__message__transformer__class=f"{taken_over.__module__}:{taken_over.__name__}",
        secor__generation=generation,
    )
    last = ("--once", file) if verb == "run" else (file, TOPIC, "--generation", generation, "--yes")
    done = spawn("pipeline", verb, *last, **{FILE: str(file)})
    assert done.code == 5, done
    assert "another process has written entry" in done.stderr
    assert listed(kept.store) == []
    assert [write.key for write in kept.store.abandoned_writes()] == []
    assert tieredstore("pipeline", verb, *last).code == 0
    assert kept.offsets() == {(TOPIC, 0): list(range(12))}
    assert list(verify_output(load_pipeline(file), kept.store)) == []


@pytest.mark.slow
def test_a_store_that_is_away_is_75(kept: Kept) -> None:
    store = {
        "output__storage__root": "", "output__storage__backend__class": "s3",
        "output__storage__s3__bucket__name": "kept", "output__storage__s3__region": "nowhere",
        "output__storage__s3__path__style__access__enabled": "true",
        "output__storage__s3__endpoint__url": f"http://127.0.0.1:{free_port()}",
        "output__storage__aws__access__key__id": "id", "output__storage__aws__secret__access__key": "hunter2",
    }  # fmt: skip
    file = kept.file(**store)
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if not line.endswith("=\n")))
    done = spawn("pipeline", "run", "--once", file)
    assert done.code == 75, done
    assert "hunter2" not in done.stderr
