"""Options of ``tieredstore cat`` besides a window: a count, the last records, some partitions, some records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tieredstore as ts
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.golden.records import Row, expected_rows, partitions_of
from tests.support.golden.segments import case_path, segments
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.model import TopicIdPartition
from tieredstore.query.writers import WRITERS
from tieredstore.reading.omitted_records import LeftOut
from tieredstore.reading.query import LogQuery
from tieredstore.reading.tail import LogTail, TailRecords
from tieredstore.testing.segments import Record, build_batch

pytestmark = pytest.mark.slow

TWO = "01-none"  # two partitions of two segments
TXN = "07-txn"  # one partition, with aborted transactions
UNCOMMITTED = ("--isolation", "read_uncommitted")


def cat(case: str, *arguments: object) -> Result:
    return tieredstore("cat", "-c", case_path(case) / "rsm.properties", segments(case)[0].topic, *arguments)


def shown(done: Result) -> list[tuple[int, int]]:
    """Return partitions and offsets from the output of ``--format``."""
    assert done.code == 0, done.stderr
    return [(int(p), int(o)) for p, o in (line.split() for line in done.text.splitlines())]


def places(case: str, isolation: str = "read_committed") -> list[tuple[int, int]]:
    return [(p, row["offset"]) for p in partitions_of(case) for row in expected_rows(case, p, isolation)]


OFFSETS = ("--format", r"%p %o\n")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


def cat_bucket(bucket: Bucket, *arguments: object, topic: str = "orders") -> Result:
    return tieredstore("cat", "--store", bucket.root.as_uri(), topic, *arguments)


@pytest.mark.parametrize("count", [1, 2, 999, 10**12])
def test_n_are_shown_and_no_more(count: int) -> None:
    everything = places(TWO)
    assert shown(cat(TWO, "-n", count, *OFFSETS)) == everything[:count]
    # Take a count that is greater than the first partition's number of records.
    both = next(at for at, (partition, _) in enumerate(everything) if partition == 1)
    assert shown(cat(TWO, "-n", both + 1, *OFFSETS)) == everything[: both + 1]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("count", [0, 1, 5, 600, 2500, 10**15])
@pytest.mark.parametrize("case", [TWO, TXN])
def test_the_last_ones_of_each_partition_are_counted_in_records(case: str, count: int, isolation: str) -> None:
    by_partition = [[row["offset"] for row in expected_rows(case, p, isolation)] for p in partitions_of(case)]
    expected = [(p, offset) for p, own in enumerate(by_partition) for offset in (own[-count:] if count else [])]
    done = cat(case, "--last", count, *OFFSETS, "--isolation", isolation)
    assert shown(done) == expected


def test_the_last_ones_before_an_end_that_is_named() -> None:
    rows = [row["offset"] for row in expected_rows(TXN, 0, "read_committed") if row["offset"] < 700]
    assert shown(cat(TXN, "--last", 50, "--to", 700, *OFFSETS)) == [(0, offset) for offset in rows[-50:]]
    assert shown(cat(TXN, "--last", 50, "--to", 0, *OFFSETS)) == []
    assert shown(cat(TXN, "--last", 50, "-n", 3, "--to", 700, *OFFSETS)) == [(0, o) for o in rows[-50:-47]]


def test_the_last_ones_of_a_log_that_compaction_left_little_of(bucket: Bucket) -> None:
    # One record in a hundred is left, and the very last one, which Kafka's cleaner always keeps.
    kept = [*range(0, 20_000, 100), 24_999]
    batches = [build_batch([Record(b"%d" % offset)], offset) for offset in kept]
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), batches, range(25_000))
    assert shown(cat_bucket(bucket, "--last", 5, *OFFSETS)) == [(0, offset) for offset in kept[-5:]]
    assert shown(cat_bucket(bucket, "--last", 201, *OFFSETS)) == [(0, offset) for offset in kept]
    assert shown(cat_bucket(bucket, "--last", 202, *OFFSETS)) == [(0, offset) for offset in kept]


def test_a_hole_behind_which_the_last_ones_lie_is_no_loss_and_one_among_them_is(bucket: Bucket) -> None:
    bucket.write(100)
    bucket.write(100, skip=50)
    assert shown(cat_bucket(bucket, "--last", 100, *OFFSETS)) == [(0, o) for o in range(150, 250)]
    cat_bucket(bucket, "--last", 101, *OFFSETS).fails(3, "offsets 100 to 149 of orders-0 are not available")
    put_up_with = cat_bucket(bucket, "--last", 101, *OFFSETS, "--on-loss", "report")
    assert shown(put_up_with) == [(0, 99), *((0, o) for o in range(150, 250))]
    assert put_up_with.stderr.count("100 to 149") == 1


def damage_log(folder: Path, number: int) -> None:
    """Damage a segment's log so that a read of any of its records fails."""
    path = sorted(folder.rglob("*.log"))[number]
    path.write_bytes(b"\x01" * path.stat().st_size)


@pytest.mark.parametrize(("arguments", "damaged"), [(("-n", 5), 2), (("--last", 5), 0), (("--last", 5), 1)])
def test_nothing_is_read_but_what_is_shown(bucket: Bucket, arguments: tuple[object, ...], damaged: int) -> None:
    for _ in range(3):
        bucket.write(100)
    damage_log(bucket.root, damaged)
    assert cat_bucket(bucket).code == 4
    assert len(shown(cat_bucket(bucket, *arguments, *OFFSETS))) == 5


@pytest.mark.parametrize(
    ("asked", "partitions"),
    [
        (("-p", "0"), [0]),
        (("-p", "1,0"), [0, 1]),
        (("-p", "2-3"), [2, 3]),
        (("-p", "3", "-p", "0-1,1"), [0, 1, 3]),
    ],
)
def test_partitions_that_are_named(bucket: Bucket, asked: tuple[str, ...], partitions: list[int]) -> None:
    for partition in range(4):
        bucket.write(10, partition=partition)
    assert shown(cat_bucket(bucket, *asked, *OFFSETS)) == [(p, o) for p in partitions for o in range(10)]
    absent = cat_bucket(bucket, *asked, "-p", "7,9-11", *OFFSETS)
    assert (absent.code, absent.stdout) == (3, b"")
    assert absent.stderr == "tieredstore: topic 'orders' has no partitions 7, 9 to 11 in the bucket, only 0 to 3\n"


def test_a_partition_of_an_earlier_life_of_its_topic_is_not_there(bucket: Bucket) -> None:
    bucket.write(10, partition=5)
    bucket.write(10, partition=0, topic_id=SECOND_ID)
    cat_bucket(bucket, "-p", 5).fails(3, "topic 'orders' has no partition 5 in the bucket, only 0")
    assert len(shown(cat_bucket(bucket, "-p", 5, "--topic-id", FIRST_ID, *OFFSETS))) == 10


def test_a_format_writes_values_as_they_are(bucket: Bucket) -> None:
    values = [b'{"a":  1.0, "\xc3\xa9":"\\u00e9"}', b"", None, b"\xff\x00", b"two\nlines", b"\x1b[2J", b"null"]
    batch = build_batch([Record(value) for value in values], 0)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [batch], range(len(values)))
    formatted = cat_bucket(bucket, "--format", r"%s\0%S\n")
    assert formatted.stdout == b"".join(
        (value or b"") + b"\0%d\n" % (-1 if value is None else len(value)) for value in values
    )


@pytest.mark.parametrize("pattern", ["cart.*retry", "^n-1", "(?i)CANCELLED", "é", "[0-9]{6}", "$^", ""])
def test_grep_shows_records_whose_key_or_value_match(pattern: str) -> None:
    def matches(row: Row) -> bool:
        return any(re.search(pattern.encode(), data) for data in (row["key"], row["value"]) if data is not None)

    expected = [(0, row["offset"]) for row in expected_rows(TXN, 0) if matches(row)]
    assert shown(cat(TXN, "--grep", pattern, *OFFSETS, *UNCOMMITTED)) == expected
    assert shown(cat(TXN, "--grep", pattern, "-n", 2, *OFFSETS, *UNCOMMITTED)) == expected[:2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--json --format csv", "--json and --format exclude each other: give one of them"),
        ("--json --format %s", "--json and --format exclude each other"),
        ("--format xml", f"--format is 'xml'; it must be one of {', '.join(WRITERS)}"),
        ("--format %x", "%x is unknown"),
        ("--from -5", "--from -5 is not an offset; for the last records, use cat --last 5"),
        ("--from -5x", "--from is '-5x', not an offset or a time"),
        ("--to -5", "--to -5 is not an offset"),
        ("--last 5 --from 3", "--last and --from exclude each other"),
        ("--last -1", "--last is '-1': it must be at least 0"),
        ("--value jsn", "--value is 'jsn'; it must be bytes, text, json, json:FILE, avro:FILE or avro"),
        ("--value json:", "--value is 'json:'; it must be bytes, text, json, json:FILE"),
        ("--key avro", "no Avro schema is given for --key avro: write avro:FILE, or give --registry URL"),
        ("--value json --registry http://x", "a registry has schemas for Avro: add --value avro or --key avro"),
        ("--value text --value bytes", "--value is given twice for all topics"),
        ("--value payments=text", "--value is given for payments, but the command reads orders"),
        ("--value json:none.json", "none.json cannot be read"),
        ("--on-loss skip", "--on-loss is 'skip': it must be one of fail, report"),
        ("--invalid skip", "--invalid is 'skip': it must be one of fail, null"),
        ("-o -", "-o - has no file name: give --format"),
        ("-o x.csv --follow", "--follow has no end: leave -o out"),
        ("-o x.csv --format jsonl", "x.csv is a name for csv, but --format asks for jsonl"),
        ("-o x.csv --json", "x.csv is a name for csv, but --json asks for jsonl"),
        ("-o folder -n 3", "folder is a folder, and its files must be complete: leave -n out"),
        ("-o folder --grep x", "leave --grep out, or name a file"),
        ("--group g", "no broker is named, which --group needs: give --bootstrap-server HOST:PORT"),
        (
            "--group g -p 3",
            "--group reads the topic with the group's members, and commits written offsets: leave -p out",
        ),
        ("--group g --to 3", "leave --to out"),
        ("--group g -o x.csv", "leave -o FILE out"),
        ("--group g --parallel 2", "leave --parallel out"),
        ("-p 1-0", "it must have the form 3, 0,2 or 4-7"),
        ("--follow --to 3", "--follow has no end"),
        ("--grep (", "--grep '(' is not a regular expression"),
        *((f"-n={wrong}", "") for wrong in ("0", "-1", "x", "1.5", "")),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_store_is_asked(line: str, words: str) -> None:
    tieredstore("cat", "-c", "nowhere.properties", "orders", *line.split()).fails(2, words)


def json_of(bucket: Bucket, *arguments: object) -> list[dict[str, Any]]:
    return cat_bucket(bucket, "--json", *arguments).clean().lines


def test_json_has_text_and_what_is_none_in_hexadecimal(bucket: Bucket) -> None:
    headers = (("h", b"\xff"), ("t", "é".encode()), ("n", None))
    batch = build_batch([Record("é".encode(), b"\xff", headers=headers), Record(None, b"", headers=())], 0)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [batch], range(2))
    first, second = json_of(bucket)
    assert (first["topic"], first["partition"], first["offset"]) == ("orders", 0, 0)
    assert (first["key"], first["value"]) == ("0xff", "é")
    assert first["headers"] == [
        {"key": "h", "value": "0xff"}, {"key": "t", "value": "é"}, {"key": "n", "value": None}
    ]  # fmt: skip
    assert (second["key"], second["value"], second["headers"]) == ("", None, None)
    assert cat_bucket(bucket, "--format", "jsonl").clean().lines == [first, second]


def test_columns_are_chosen_for_files_and_json(bucket: Bucket, tmp_path: Path) -> None:
    batch = build_batch([Record(b"v", b"k")], 0)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [batch], range(1))
    path = tmp_path / "x.parquet"
    assert cat_bucket(bucket, "--columns", "value, key", "-o", path).code == 0
    assert pq.read_table(path).to_pylist() == [{"value": b"v", "key": b"k"}]
    assert cat_bucket(bucket, "--columns", "offset,value", "--json").clean().lines == [{"offset": 0, "value": "v"}]
    for wrong, sentence in (
        (("ofset", "--json"), "no column 'ofset'; did you mean 'offset'?"),
        (("key",), "--columns is for one file"),
        (("key", "-o", tmp_path / "folder"), "--columns is for one file"),
        (("key", "--format", "%k"), "--format has its own columns"),
        (("key,key", "--json"), "each at most once"),
    ):
        cat_bucket(bucket, "--columns", *wrong).fails(2, sentence)


def test_keys_and_values_are_read_as_types(bucket: Bucket, tmp_path: Path) -> None:
    (schema := tmp_path / "schema.json").write_text('{"n": "int64"}')
    values = [b'{"n": 1}', b"\xff", None]
    batch = build_batch([Record(value, b"k") for value in values], 0)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [batch], range(3))
    way_out = "read it as bytes (--value bytes), or as null (--invalid null)"
    cat_bucket(bucket, "--value", "text").fails(4, f"the value at offset 1 of orders-0 is not UTF-8: {way_out}")
    told = "tieredstore: 1 invalid value read as null; the first: the value at offset 1 of orders-0 is not "
    given: Any
    for kind, given, reason in (
        ("text", '{"n": 1}', "UTF-8"),
        ("json", {"n": 1}, "JSON"),
        (f"json:{schema}", {"n": 1}, "JSON of the schema"),
        (f"orders=json:{schema}", {"n": 1}, "JSON of the schema"),
    ):
        done = cat_bucket(bucket, "--value", kind, "--invalid", "null", "--json")
        assert ([row["value"] for row in done.lines], done.stderr) == ([given, None, None], f"{told}{reason}\n")
    assert '{"n": 1}' in cat_bucket(bucket, "--value", f"json:{schema}", "--invalid", "null").text
    cat_bucket(bucket, "--value", "json").fails(4, f"the value at offset 1 of orders-0 is not JSON: {way_out}")
    done = cat_bucket(bucket, "--value", "json", "--invalid", "null", "--grep", "n.*1", *OFFSETS)
    assert done.text.split() == ["0", "0"]
    cat_bucket(bucket, "--value", f"json:{schema}", "--grep", "1").fails(
        2, "--grep matches only bytes and text, but --value"
    )
    assert cat_bucket(bucket, "--value", "bytes").clean().stdout == cat_bucket(bucket).clean().stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--from", 20260101),
            "offset 20260101 is beyond the end of {0}-0 ({1}), {0}-1 ({2}); a day is written 2026-01-01",
        ),
        (("--from", 10**6, "-p", 1), "offset 1000000 is beyond the end of {0}-1 ({2}); a time is"),
        (("--to", 10**6, "-n", 1, "-p", 0), "offset 1000000 is beyond the end of {0}-0 ({1}); a time is"),
    ],
)
def test_a_number_that_nobody_can_have_meant_is_refused(arguments: tuple[object, ...], sentence: str) -> None:
    ends = [expected_rows(TWO, partition)[-1]["offset"] + 1 for partition in partitions_of(TWO)]
    done = cat(TWO, *arguments)
    assert (done.code, done.text) == (2, "")
    assert done.stderr.startswith(f"tieredstore: {sentence.format(segments(TWO)[0].topic, *ends)}")


def test_the_end_itself_is_no_mistake() -> None:
    end = expected_rows(TWO, 0)[-1]["offset"] + 1
    done = cat(TWO, "-p", 0, "--from", end, "--to", end)
    assert (done.code, done.text, done.stderr) == (0, "", "tieredstore: no records found\n")


def test_an_offset_of_a_long_log_that_looks_like_a_day_is_told_as_what_it_is_taken_for(bucket: Bucket) -> None:
    batch = build_batch([Record(b"x"), Record(b"y")], 20260101)
    bucket.copy(TopicIdPartition(FIRST_ID, "orders", 0), [batch], range(20260101, 20260103))
    done = cat_bucket(bucket, "--from", 20260101, *OFFSETS)
    assert shown(done) == [(0, 20260101), (0, 20260102)]
    assert done.stderr == "tieredstore: --from 20260101 is read as an offset; a day is written 2026-01-01\n"


def test_many_partitions_that_end_before_a_number_are_one_line(bucket: Bucket) -> None:
    for partition in range(5):
        bucket.write(10, partition=partition)
    done = cat_bucket(bucket, "--from", 11)
    assert "offset 11 is beyond the end of orders-0 (10), orders-1 (10), orders-2 (10) and 2 more; a" in done.stderr


def test_what_was_left_out_is_said_only_where_something_was() -> None:
    assert "left out: the records of 22 aborted transactions" in cat(TXN).stderr
    assert cat(TXN, *UNCOMMITTED).stderr == ""
    first = next(o for o in range(10**6) if (0, o) not in places(TXN))
    assert cat(TXN, "--to", first).stderr == ""
    assert cat(TXN, "-n", first).stderr == ""
    assert "left out: the records of 1 aborted transaction;" in cat(TXN, "-n", first + 1).stderr


def test_the_columns_are_as_wide_as_what_they_hold(bucket: Bucket) -> None:
    for _ in range(2):
        bucket.write(600)
    lines = cat_bucket(bucket).text.splitlines()
    # The greatest offset sets the width of OFFSET; the first rows set all other widths.
    assert lines[0] == "PARTITION  OFFSET  TIMESTAMP                 KEY   VALUE"
    assert lines[2].startswith("        0       0  ")
    assert {line.index("null") for line in lines[2:]} == {lines[0].index("KEY")}
    assert len(lines) == 1202


def test_new_segments_are_followed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.reading.reader.LogTail", partial(LogTail, look_s=0.05))
    bucket.write(10)
    bucket.write(10, partition=1)
    with ts.open(bucket.root) as opened, closing(opened.read("orders", start=7, follow=True).batches()) as tail:
        seen = [next(tail) for _ in range(2)]
        bucket.write(5)
        seen.append(next(tail))
        bucket.write(5, partition=1)
        seen.append(next(tail))
    tables: list[Any] = [*seen]
    offsets = sorted((one.column("partition")[0].as_py(), one.column("offset").to_pylist()) for one in tables)
    assert offsets == [(0, [7, 8, 9]), (0, [*range(10, 15)]), (1, [7, 8, 9]), (1, [*range(10, 15)])]


def test_follow_ends_when_it_has_shown_enough(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    later = [10]

    class Followed(LogTail):
        """Tail of a log to which ten more records are written after the first answer."""

        def poll(self, timeout_s: float) -> TailRecords | None:
            records = super().poll(timeout_s)
            if records is not None and later:
                bucket.write(later.pop())
            return records

    monkeypatch.setattr("tieredstore.reading.reader.LogTail", partial(Followed, look_s=0.05))
    bucket.write(10)
    # The output has the last five records, then new ones up to the count.
    done = cat_bucket(bucket, "--last", 5, "--follow", "-n", 8, *OFFSETS)
    assert shown(done) == [(0, offset) for offset in range(5, 13)]


def test_follow_of_a_topic_that_is_not_there_ends_at_once(bucket: Bucket) -> None:
    bucket.write(1)
    cat_bucket(bucket, "--follow", topic="order").fails(3, "did you mean 'orders'?")


def test_left_out_of_a_read_that_was_stopped_asks_nobody() -> None:
    left_out = LeftOut(LogQuery.of_topic("orders", client={"no": "client"}))
    left_out.aborted_in_tail = 3
    assert left_out.sentences(asks=False) == ["the records of 3 aborted transactions"]


def test_a_damaged_copy_of_a_segment_is_not_read_where_only_offsets_are_wanted(tmp_path: Path) -> None:
    """Tests share a golden case's store, so the test damages a copy."""
    store = tmp_path / "store"
    shutil.copytree(case_path(TWO) / "store", store)
    damage_log(store, -1)
    topic, last = segments(TWO)[0].topic, partitions_of(TWO)[-1]
    done = tieredstore("cat", "--store", store.as_uri(), topic, "-p", 0, "--last", 1, *OFFSETS)
    assert shown(done) == [(0, expected_rows(TWO, 0)[-1]["offset"])]
    assert tieredstore("cat", "--store", store.as_uri(), topic, "-p", last, "--last", 1).code == 4
