"""``tieredstore cat`` and ``offsets`` on segments of the plugin."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli.cli_process import Result, command, environment, store_of, tieredstore
from tests.support.golden.records import Row, expected_rows, partitions_of
from tests.support.golden.segments import CASES, case_path, segments
from tieredstore.cli.terminal.output import iso_utc
from tieredstore.errors import ConfigError
from tieredstore.installation import install_command
from tieredstore.model import AtTime
from tieredstore.query.positions import parse_place

pytestmark = pytest.mark.slow

TXN = ("-c", case_path("07-txn") / "rsm.properties", "txn")


ABORTED = "tieredstore: left out: the records of {} aborted transactions; --isolation read_uncommitted shows them\n"


def lines_of(done: Result, stderr: str = "") -> list[Any]:
    assert (done.code, done.stderr) == (0, stderr)
    return done.lines


def as_json(row: Row, partition: int, topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "offset": row["offset"],
        "timestamp": iso_utc(row["timestamp"]),
        "timestamp_type": row["timestampType"],
        "key": shown(row["key"]),
        "value": shown(row["value"]),
        "headers": [{"key": name, "value": shown(value)} for name, value in row["headers"]] or None,
        "leader_epoch": row["leaderEpoch"],
    }


def shown(data: bytes | None) -> str | None:
    """Return text, or hexadecimal for other bytes."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}" if data is not None else None


def aborted_in(case: str) -> str:
    """Return cat's last line for a whole topic."""
    # Each aborted transaction has an entry of 34 bytes in the broker's transaction index.
    size = sum(path.stat().st_size for path in (case_path(case) / "original").rglob("*.txnindex"))
    return ABORTED.format(size // 34) if size else ""


@pytest.mark.parametrize(
    ("case", "isolation"),
    [(case, "read_committed") for case in CASES] + [(case, "read_uncommitted") for case in CASES if "txn" in case],
)
def test_cat_json_gives_every_record_of_the_topic_by_partition_and_offset(case: str, isolation: str) -> None:
    settings, topic = case_path(case) / "rsm.properties", segments(case)[0].topic
    # Like Spark, cat shows committed records by default.
    chosen = ("--isolation", isolation) if isolation == "read_uncommitted" else ()
    done = tieredstore("cat", "-c", settings, topic, "--json", *chosen)
    rows = lines_of(done, aborted_in(case) if isolation == "read_committed" else "")
    assert rows == [as_json(row, p, topic) for p in partitions_of(case) for row in expected_rows(case, p, isolation)]


def test_one_partition_and_a_window_of_offsets() -> None:
    where = ("-c", case_path("01-none") / "rsm.properties", segments("01-none")[0].topic)
    rows = lines_of(tieredstore("cat", *where, "-p", 1, "--from", 100, "--to", 103, "--json"))
    assert rows == [as_json(row, 1, where[-1]) for row in expected_rows("01-none", 1)[100:103]]


@pytest.mark.parametrize("form", ["iso", "zone", "naive", "milliseconds"])
def test_a_window_of_times(form: str) -> None:
    case = "06-codec-zstd-logappendtime"  # its timestamps ascend
    times = [row["timestamp"] for row in expected_rows(case, 0)]
    bounds = [time_text(time, form) for time in (times[300], times[700])]
    where = ("-c", case_path(case) / "rsm.properties", segments(case)[0].topic)
    done = tieredstore("cat", *where, "--from", bounds[0], "--to", bounds[1], "--json")
    # A time without a zone is UTC, and the output says so.
    shown = [f"{bound.replace('T', ' ')[:19]} UTC" for bound in bounds]
    told = "".join(
        f"tieredstore: {option} {bound} is {utc}\n"
        for option, bound, utc in zip(("--from", "--to"), bounds, shown, strict=True)
    )
    rows = lines_of(done, told if form == "naive" else "")
    expected = [row for row in expected_rows(case, 0) if times[300] <= row["timestamp"] < times[700]]
    assert expected
    assert rows == [as_json(row, 0, where[-1]) for row in expected]


def time_text(milliseconds: int, form: str) -> str:
    """Return the text of this millisecond, or for ``naive`` of a moment less than a millisecond earlier. Both find the
    same first record.
    """
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC) + timedelta(milliseconds=milliseconds % 1000)
    match form:
        case "milliseconds":
            return f"@{milliseconds}"
        case "zone":
            return moment.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()
        case "naive":
            return (moment - timedelta(microseconds=999)).replace(tzinfo=None).isoformat(sep=" ")
        case _:
            return moment.isoformat().replace("+00:00", "Z")


def test_without_json_a_line_for_each_record() -> None:
    shown = tieredstore("cat", *TXN, "--from", 600, "--to", 603, "--isolation", "read_uncommitted")
    heading, rule, *lines = shown.text.splitlines()
    assert set(rule) == {"─"}
    assert heading.split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    expected = [row for row in expected_rows("07-txn", 0) if 600 <= row["offset"] < 603]
    for line, row in zip(lines, expected, strict=True):
        time = datetime.fromtimestamp(row["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds")
        assert line.split()[:4] == ["0", str(row["offset"]), time.replace("+00:00", "Z"), row["key"].decode()]
        assert row["value"].decode() in line


def test_a_hole_is_an_error_or_reported_on_stderr(tmp_path: Path) -> None:
    settings = store_of(tmp_path, case_path("07-txn") / "original")
    assert tieredstore("rm", "-c", settings, "txn", "-p", 0, "--segment", 605, "--yes").code == 0
    failed = tieredstore("cat", "-c", settings, "txn", "--json")
    assert (failed.code, failed.stdout) == (3, b"")
    assert failed.stderr.startswith("tieredstore: offsets 605 to 1208 of txn-0")
    uncommitted = ("--isolation", "read_uncommitted")
    reported = tieredstore("cat", "-c", settings, "txn", "--json", "--on-loss", "report", *uncommitted)
    assert reported.code == 0
    assert reported.stderr.count("605 to 1208") == 1
    read = [row["offset"] for row in reported.lines]
    assert read == [row["offset"] for row in expected_rows("07-txn", 0) if not 605 <= row["offset"] <= 1208]
    ((row,), _) = tieredstore("ls", "-c", settings, "txn", "--json").rows
    assert row["lost"] == [{"start": 605, "stop": 1209}]
    assert "0 … 604, 1209 … 3046" in tieredstore("ls", "-c", settings, "txn").text


def test_an_undecided_transaction_is_told_of_on_stderr(tmp_path: Path) -> None:
    settings = store_of(tmp_path, case_path("07-txn") / "original")
    for base in (605, 1209, 1815, 2420):
        assert tieredstore("rm", "-c", settings, "txn", "-p", 0, "--segment", base, "--yes").code == 0
    done = tieredstore("cat", "-c", settings, "txn", "--json")
    assert done.code == 0
    assert (
        "to 604 of txn-0, held back by a transaction that has no outcome in the segments, which end at" in done.stderr
    )
    assert done.stderr.endswith("offset 604; --isolation read_uncommitted shows them\n")
    decided = [row["offset"] for row in done.lines]
    expected = [row["offset"] for row in expected_rows("07-txn", 0, "read_committed") if row["offset"] < 605]
    assert decided == expected[: len(decided)]
    (begun,) = re.findall(r"offsets (\d+) to 604", done.stderr)
    assert all(offset < int(begun) for offset in decided)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("cat Txm", 3, "tieredstore: there is no topic 'Txm' in the bucket; did you mean 'txn'?\n"),
        ("cat txn-0", 3, "there is no topic 'txn-0' in the bucket; did you mean 'txn'?"),
        ("cat txn -p 7", 3, "tieredstore: topic 'txn' has no partition 7 in the bucket, only 0\n"),
        ("ls txm", 3, "tieredstore: there is no topic 'txm' in the bucket; did you mean 'txn'?\n"),
        ("ls txm --json", 3, "there is no topic 'txm' in the bucket; did you mean 'txn'?"),
        ("ls txn -p 7", 3, "tieredstore: topic 'txn' has no partition 7 in the bucket, only 0\n"),
        ("cat txn --from tomorrow", 2, "--from is 'tomorrow', not an offset or a time"),
        ("cat txn --from 9 --to 3", 2, "ends before it begins"),
        ("cat txn --isolation serializable", 2, "serializable"),
        ("cat txn --topic-id x", 2, "uuid"),
        ("ls tx", 3, "there is no topic 'tx' in the bucket; did you mean 'txn'?"),
        ("ls nothing", 3, "there is no topic 'nothing' in the bucket; check the name and key."),
        ("ls txn -p 0-2", 3, "topic 'txn' has no partitions 1 to 2 in the bucket, only 0"),
    ],
)
def test_records_that_cannot_be_shown_are_one_sentence(line: str, code: int, words: str) -> None:
    command, *arguments = line.split()
    tieredstore(command, "-c", TXN[1], *arguments).fails(code, words)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = subprocess.run(
        command("cat", *TXN), capture_output=True, text=True, env=environment(PYTHONPATH=path), check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tieredstore: decoding keys and values needs pyarrow: {install_command('arrow')}\n"


def test_a_reader_of_the_output_that_goes_away_is_no_traceback() -> None:
    with subprocess.Popen(
        command("cat", *TXN, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_help_does_not_need_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError\n")
    code = "import sys, tieredstore.cli.app.main; sys.exit('pyarrow' in sys.modules)"
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    assert subprocess.run([sys.executable, "-c", code], env=environment(PYTHONPATH=path), check=False).returncode == 0


@given(st.text(max_size=30))
def test_any_text_is_an_offset_a_time_or_a_config_error(text: str) -> None:
    try:
        place = parse_place("--from", text)
    except ConfigError:
        return
    assert place == int(text) if isinstance(place, int) else isinstance(place, AtTime)


@given(st.integers(0, 253_402_300_799_999))
def test_milliseconds_since_1970_are_exact(milliseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    as_number, as_text = (parse_place("--from", text) for text in (f"@{milliseconds}", moment.isoformat()))
    assert as_number == as_text == AtTime(milliseconds)


def damaged_copy(folder: Path, number: int) -> tuple[str, Path, str]:
    """Copy a golden topic of several partitions, damage one manifest of partition 0, and return its options."""
    case = "01-none"
    shutil.copytree(case_path(case) / "store", folder / "store")
    own = [segment for segment in segments(case) if segment.partition == 0]
    (folder / "store" / f"{own[number].main_path}.rsm-manifest").write_bytes(b"{}")
    settings = folder / "store.properties"
    text = (case_path(case) / "rsm.properties").read_text()
    settings.write_text(re.sub(r"storage\.root=.*", f"storage.root={folder / 'store'}", text))
    return "-c", settings, own[0].topic


# The case (-1, True) is absent: with --follow, a damaged last segment is no hole before later segments exist.
@pytest.mark.parametrize(("number", "follow"), [(0, False), (-1, False), (0, True)])
def test_a_segment_that_cannot_be_read_fails_the_command_or_is_told_of(
    number: int, follow: bool, tmp_path: Path
) -> None:
    where = damaged_copy(tmp_path, number)
    failed = tieredstore("cat", *where, *["--follow"] * follow)
    assert failed.code == 3
    assert re.search(r"is ignored: .* --on-loss report", failed.stderr)
    assert "on_data_loss" not in failed.stderr
    if not follow:
        reported = tieredstore("cat", *where, "--on-loss", "report", "--json")
        assert reported.code == 0
        assert "is ignored" in reported.stderr
        assert {row["partition"] for row in reported.lines} == {0, 1}


def test_partitions_are_given_once_or_often() -> None:
    none = ("cat", "-c", case_path("01-none") / "rsm.properties", "none", "-n", 3)
    by_option = tieredstore(*none, "-p", 1).clean()
    for line in ("--partitions 1", "-p 1 -p 1"):
        assert tieredstore(*none, *line.split()).stdout == by_option.stdout
