"""Wrong calls: each gives one sentence that names the argument, before any request is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pyarrow.dataset as ds
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tieredstore as ts
from tieredstore.errors import ConfigError, ResourceNotFoundError, SegmentNotFoundError
from tieredstore.types import Json

NAIVE = datetime(2026, 1, 31)  # noqa: DTZ001  the test needs a time without a zone
NO_STORE = {"storage.backend.class": "tests.api.test_opening:NoStore"}

Call = Callable[[Any], Any]

BEFORE_ANY_REQUEST: list[tuple[Call, str]] = [
    (lambda b: b.read("txn", "0"), "partitions is a str: give 0, [0, 2] or range(3)"),
    (lambda b: b.read("txn", start=-5), "start=-5 is not an offset; use last=5 for the last records"),
    (
        lambda b: b.read("txn", start=1769846400000),
        "1769846400000 is not an offset of a log; a time in milliseconds since",
    ),
    (lambda b: b.read("txn", start=NAIVE), "start is 2026-01-31T00:00:00, which has no time zone"),
    (lambda b: b.read("txn", start="tomorrowish"), "start is 'tomorrowish', not an offset or a time"),
    (lambda b: b.read("txn", start=200, stop=100), "start 200 is after stop 100"),
    (lambda b: b.read("txn", start="yesterday", stop="2026-01-01"), "start yesterday is after stop 2026-01-01"),
    (lambda b: b.segments("txn", start=200, stop=100), "start 200 is after stop 100"),
    (lambda b: b.verify(start=200, stop=100), "start 200 is after stop 100"),
    (lambda b: b.upload(".", dryrun=True), "upload() has no argument 'dryrun'; did you mean dry_run?"),
    (lambda b: b.mirror("x", dryrun=True), "mirror() has no argument 'dryrun'; did you mean dry_run?"),
    (
        lambda b: b.remove("txn", before="2026-01-03"),
        "remove() has no argument 'before'; it takes stop, segment, force, par",
    ),
    (lambda b: b.upload(5), "log_dir is of the type int; it must be a path"),
    (lambda b: b.export("txn", 5), "folder is of the type int; it must be a path"),
    (lambda b: b.verify(state=5), "state is of the type int; it must be a path"),
    (lambda b: b.usage(prices=5), "prices is of the type int; it must be a path"),
    (lambda b: b.doctor(release=0.1), "release is of the type float; it must be a text such as '0.1'"),
    (lambda b: b.read("txn", value=ts.types.Json), "value is <class 'tieredstore.values.json_text.Json'>; it must be"),
    (lambda b: b.verify(parallel=0), "parallel is 0; it must be at least 1"),
    (lambda b: b.upload(".", parallel="2"), "parallel is of the type str; it must be a whole number"),
    (lambda b: b.read("txn", parallel=0), "parallel is 0; it must be at least 1"),
    (lambda b: b.gc(parallel=None), "parallel is of the type NoneType; it must be a whole number"),
    (lambda b: b.remove("txn", older="1d"), "remove() has no argument 'older'; it takes stop, segment, force, par"),
    (lambda b: b.remove("txn", partition=0), "remove() has no argument 'partition'; did you mean partitions?"),
    (lambda b: b.gc(minage="1h"), "gc() has no argument 'minage'; did you mean min_age?"),
    (lambda b: b.rotate_keys(topic="txn"), "rotate_keys() has no argument 'topic'; did you mean topic_id?"),
    (lambda b: b.topics(strat=0), "topics() has no argument 'strat'; did you mean start?"),
    (lambda b: list(b.each_segment(strat=0)), "each_segment() has no argument 'strat'; did you mean start?"),
    (lambda b: b.usage(price=1), "usage() has no argument 'price'; did you mean prices?"),
    (lambda b: b.verify(levle="data"), "verify() has no argument 'levle'; did you mean level?"),
    (lambda b: b.read("txn", end=5), "read() has no argument 'end'; it takes topic, partitions, start"),
    (lambda b: b.query("FROM txn", sandbx=True), "query() has no argument 'sandbx'; did you mean sandbox?"),
    (lambda b: b.inspect("txn", "0", 605), "partition is of the type str; give a number"),
    (lambda b: b.inspect("txn", 0, "605"), "segment is of the type str; give the offset it begins at, or its id"),
    (lambda b: b.inspect("txn", 0, None), "segment is of the type NoneType; give the offset it begins at, or its id"),
    (lambda b: b.place_hold(5), "5 is not a valid name of a hold: use letters"),
    (lambda b: b.export("txn", "x", on_file="x"), "on_file is of the type str; it must be a function"),
    (lambda b: b.export("txn", "x", limit=0), "an export to a folder writes all records from start to stop: leave li"),
    (
        lambda b: b.export("txn", "x", filter=ds.field("offset") < 5),
        "an export to a folder writes all records from start to stop: leave filter out",
    ),
    (
        lambda b: b.export("txn", "x", fileformat="csv"),
        "export() has no argument 'fileformat'; did you mean file_format?",
    ),
    (lambda b: b.read("txn", last=5, start=0), "last and start exclude each other"),
    (lambda b: b.read("txn", last="5"), "last is '5'; give a number of records"),
    (lambda b: b.read("txn", isolation="rc"), "isolation is 'rc'; it must be read_committed or read_uncommitted"),
    (lambda b: b.read("txn", on_loss="skip"), "on_loss is 'skip'; it must be fail or report"),
    (lambda _: Json(cast("Any", {"n": "int64"})), "the schema of JSON is a dict; give a pyarrow schema: pa.schema({"),
    (lambda b: b.read("txn", value="jsn"), "value is 'jsn'; it must be bytes, text, json, avro, Json(…) or Avro(…)"),
    (lambda b: b.read("txn", key="avro"), "key is 'avro', and no schema is given: add registry=, or give Avro(…)"),
    (lambda b: b.query("FROM txn", value="avro"), "value is 'avro', and no schema is given: add registry="),
    (lambda b: b.read("txn", registry="http://h"), "registry has schemas for Avro: add value='avro' or key='avro', or"),
    (lambda b: b.read("txn", registry=7), "registry is of the type int; give a URL or a mapping"),
    (
        lambda b: b.read("txn", registry="registry:8081"),
        "schema.registry.url is 'registry:8081', which is not an address",
    ),
    (lambda b: b.read("txn", columns="offset"), "columns is of the type str; give a list of names"),
    (lambda b: b.read("txn", columns=["ofset"]), "no column 'ofset'; did you mean 'offset'?"),
    (lambda b: b.read(7), "a topic is of the type int; give a name"),
    (lambda b: b.read("txn", follow=True, stop=5), "follow has no end: leave stop out"),
    (lambda b: b.read("txn", limit="5"), "limit is '5'; give a number of records"),
    (lambda b: b.query(7), "sql is of the type int; give a query"),
    (lambda b: b.remove(), "name at least one topic"),
    (lambda b: b.remove("txn", stop=4100), "stop (--to) is an offset, which needs one topic and its"),
    (lambda b: b.remove("t*", stop=4100, partitions=0), "stop (--to) is an offset, which needs one topic and its"),
    (lambda b: b.remove("txn", segment=5), "segment (--segment) needs its partition: name one topic and one partition"),
    (lambda b: b.remove("t*", segment=5, partitions=0), "segment (--segment) needs its partition: name one topic"),
    (lambda b: b.remove("txn", segment=5, stop="yesterday"), "segment (--segment) and stop (--to) exclude each other"),
    (lambda b: b.remove("txn", segment="5", partitions=0), "segment is of the type str; give the offset it begins at"),
    (
        lambda b: b.remove("txn", force=True),
        "force applies only to partitions that a broker lists: open the bucket with broker=",
    ),
    (lambda b: b.gc(unknown_too=True), "unknown_too adds segments that a broker never listed"),
    (lambda b: b.usage(by="week"), "by is 'week'; it must be topic, partition or day"),
    (lambda b: b.verify(level="deep"), "level is 'deep'; it must be listing, index, data"),
    (lambda b: b.verify(level="data", sample=5), "sample is 5; give a fraction above 0, up to 1, such as 0.05"),
    (lambda b: b.verify(sample=0.5), "a sample applies to the levels index and data"),
    (lambda b: b.segments("txn", -1), "partitions is -1: give 0, [0, 2] or range(3)"),
    (lambda b: b.segments("txn", []), "partitions is empty"),
    (lambda b: b.segments("txn", topic_id="x"), "'x' is not a Kafka uuid"),
    (lambda b: b.usage(partitions=0), "partitions and topic_id select within a topic: name the topic too"),
    (
        lambda b: b.place_hold("x", "txn", partitions=0, stop="2026-01-31"),
        "stop (--to) is a time, but a hold ends at an offset: give an offset, or leave",
    ),
    (lambda b: b.place_hold("x", "txn", start="10:00"), "start (--from) is a time, which needs a topic and a"),
    (
        lambda b: b.abort_rule(min_age="0d"),
        "min_age is 0:00:00: a store's rule counts whole days, so give 1d or more, such as 7d",
    ),
    (lambda b: b.verify(recheck_after="1 week"), "recheck_after is '1 week': give a duration, as 90s, 30m, 24h or 7d"),
    (lambda b: b.place_hold("x", "txn", "orders"), "a hold covers everything, one topic or one partition"),
    (lambda b: b.place_hold("x", "t*"), "a hold covers everything, one topic or one partition"),
    (lambda b: b.place_hold("x", partitions=0), "partitions and topic_id select within a topic: name the topic too"),
    (lambda b: b.place_hold("a b"), "'a b' is not a valid name of a hold"),
]

OF_A_BUCKET: list[tuple[Call, type[Exception], str]] = [
    (lambda b: b.verify(on_finding=[]), ConfigError, "on_finding is of the type list; it must be a function"),
    (lambda b: b.verify(on_segment=5), ConfigError, "on_segment is of the type int; it must be a function"),
    (lambda b: b.keys(5), ConfigError, "key_id is 5; give the id of a key pair"),
    (lambda b: b.keys(" "), ConfigError, "key_id is ' '; give the id of a key pair"),
    (lambda b: b.place_hold("x", reason=5), ConfigError, "the hold 'x' could not be read: give a reason of at most"),
    (lambda b: b.place_hold("x", reason=b"x"), ConfigError, "the hold 'x' could not be read: give a reason of at most"),
    (lambda b: b.place_hold("x", reason="x" * 70_000, dry_run=True), ConfigError, "the hold 'x' could not be read"),
    (lambda b: b.remove("txn").apply(on_outcome="print"), ConfigError, "on_outcome is of the type str; it must be a"),
    (lambda b: b.release_hold("x"), ResourceNotFoundError, "there is no hold 'x'; see holds() or tieredstore holds"),
    (lambda b: b.read("tnx"), ResourceNotFoundError, "there is no topic 'tnx' in the bucket; did you mean 'txn'?"),
    (lambda b: b.segments("txn", 3), ResourceNotFoundError, "topic 'txn' has no partition 3 in the bucket, only 0"),
    (lambda b: b.remove("tx*", "ab*"), ResourceNotFoundError, "there is no topic 'ab*' in the bucket"),
    (lambda b: b.inspect("txn", 0, 7), SegmentNotFoundError, "no segment of txn-0 begins at 7; nearest 0, 605"),
    (lambda b: b.read("txn").write("a.txt"), ConfigError, "'a.txt' has no known ending: name it .parquet"),
    (lambda b: b.rotate_keys(), ConfigError, "the settings have no key ring to rotate to"),
    (lambda b: b.release_hold("case"), ResourceNotFoundError, ""),
    (lambda b: b.mirror(b), ConfigError, "source and target are the same place"),
    (lambda b: b.mirror(5), ConfigError, "an object of the type int names no store: give a path"),
    (lambda b: b.inspect("txn", 0, 0).fetch("a.log", range=(0, 9)), ConfigError, "range is of the type tuple; it must"),
    (lambda b: b.inspect("txn", 0, 0).index("offsets"), ConfigError, "kind is 'offsets'; it must be one of offset,"),
]


WINGS: Any = ts

OF_WINGS: list[tuple[Call, str]] = [
    (lambda b: WINGS.Uploader(b.settings), "loaded settings have no uploader.*: pass the settings' file"),
    (lambda _: WINGS.Uploader(7), "an object of the type int names no store: give a path"),
    (lambda _: WINGS.Uploader("absent"), "there is no file or folder 'absent'"),
    (lambda _: WINGS.BatchProducer(7, "orders"), "an object of the type int names no store: give a path"),
    (lambda b: WINGS.BatchProducer(b, 7), "invalid topic name 7: use letters, digits, dots, dashes and underscores"),
    (lambda b: WINGS.BatchProducer(b, "orders", acks="2"), "acks is '2'; it must be all, 1 or 0"),
    (lambda b: WINGS.BatchProducer(b, "orders", acks="1"), "acks=1 waits for a broker, but no brokers are set"),
    (lambda b: WINGS.BatchProducer(b, "orders", brokers=7), "brokers is 7; give host:port, separated by commas"),
    (lambda b: WINGS.BatchConsumer(b, "a b"), "invalid topic name 'a b'"),
    (lambda b: WINGS.BatchConsumer(b, "orders", start="first"), "start is 'first'; it must be earliest or latest"),
    (lambda b: WINGS.BatchConsumer(b, "orders", delivery="once"), "delivery is 'once'; it must be at-least-once or"),
    (lambda b: WINGS.BatchConsumer(b, "orders", on_data_loss="x"), "on_data_loss is 'x'; it must be fail or report"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "sentence"), BEFORE_ANY_REQUEST, ids=[sentence for _, sentence in BEFORE_ANY_REQUEST])
def test_a_wrong_argument_is_told_before_any_request(call: Call, sentence: str) -> None:
    with ts.open(NO_STORE) as bucket, pytest.raises(ConfigError, match=f"^{re.escape(sentence)}") as caught:
        call(bucket)
    assert isinstance(caught.value, ValueError)


@pytest.mark.skipif(find_spec("tieredstore.pubsub") is None, reason="the core alone")
@pytest.mark.parametrize(("call", "sentence"), OF_WINGS, ids=[sentence for _, sentence in OF_WINGS])
def test_so_it_is_by_the_classes_of_wings(call: Call, sentence: str) -> None:
    with ts.open(NO_STORE) as bucket, pytest.raises(ConfigError, match=f"^{re.escape(sentence)}"):
        call(bucket)


@pytest.mark.parametrize(("call", "kind", "sentence"), OF_A_BUCKET, ids=[sentence for *_, sentence in OF_A_BUCKET])
def test_what_is_not_there_is_named(bucket: ts.Bucket, call: Call, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        call(bucket)


@pytest.mark.parametrize("broker_id", ["1", True, -1, 2**31, 1.5])
def test_a_broker_id_that_no_manifest_can_have_uploads_nothing(root: Path, disk: Path, broker_id: Any) -> None:
    with ts.open(root) as bucket:
        with pytest.raises(ConfigError, match=r"^broker_id is .*; it must be a number from 0 to 2147483647$"):
            bucket.upload(disk, broker_id=broker_id)
        assert bucket.topics() == []


def test_a_disk_without_segments_is_no_log_directory(bucket: ts.Bucket, tmp_path: Path) -> None:
    with pytest.raises(ts.TieredStoreError, match=r"absent is not a directory or a \.log file"):
        bucket.upload(tmp_path / "absent")


SOMETHING = st.one_of(
    st.none(), st.integers(), st.floats(), st.booleans(), st.binary(), st.text(), st.datetimes(), st.builds(object),
    st.lists(st.integers() | st.text(), max_size=3),
)  # fmt: skip


@given(
    name=st.sampled_from(["start", "stop", "last", "partitions", "isolation", "on_loss", "key", "columns", "topic_id"]),
    given_=SOMETHING,
)
def test_whatever_is_given_is_told_as_a_setting_that_is_wrong(name: str, given_: object) -> None:
    with ts.open(NO_STORE) as bucket, pytest.raises((ConfigError, AssertionError)) as caught:
        bucket.read("txn", **{name: given_})  # type: ignore[arg-type]
    if isinstance(caught.value, AssertionError):
        assert "was opened" in str(caught.value)


def is_folder(text: str) -> bool:
    return text == "~" or Path(text.partition("\0")[0]).is_dir()


@given(source=SOMETHING.filter(lambda one: not isinstance(one, str) or not is_folder(one)))
@example(source="~nobody-has-this-name/logs")
def test_no_source_ends_in_a_traceback(source: object) -> None:
    with pytest.raises(ConfigError):
        ts.open(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", [5, [], object()])
def test_a_store_of_another_type_is_told(store: Any) -> None:
    with pytest.raises(ConfigError, match=r"^store is of the type \w+; give a URL or a folder$"):
        ts.open({}, store=store)


def test_a_store_may_be_a_path(tmp_path: Path) -> None:
    with ts.open({"chunk.size": 5}, store=tmp_path) as bucket:
        assert bucket.url == f"file://{tmp_path}/"


def test_an_empty_text_is_not_this_folder() -> None:
    with pytest.raises(ConfigError, match=r"^'' names no store: give a path, a URL"):
        ts.open("")
