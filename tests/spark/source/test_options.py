"""Options: tables of valid values and of errors for invalid ones, and single cases."""

from __future__ import annotations

import logging
import pickle
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import REPOSITORY
from tests.support.spark.option_tables import PAGES, renew_tables
from tieredstore.errors import ConfigError
from tieredstore.model import AtTime, Earliest, Latest, Uuid
from tieredstore.partitions.selections import Assign, Subscribe, SubscribePattern
from tieredstore.spark.source.options import SourceOptions, parse_options
from tieredstore.spark.source.rows import COLUMNS, KAFKA_ROWS
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.trigger_limits import TriggerLimits

STORE = {"storage.backend.class": "filesystem", "storage.root": "/r"}
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
ID = "AAAAAAAAQACAAAAAAAAAAA"
PAIR = "encryption.key.pairs"
SELECTIONS = {"subscribe", "subscribePattern", "assign"}

Texts = dict[str, str]


def parsed(options: Texts, *, streaming: bool = False) -> SourceOptions:
    """Parse these options, with a store added, and with a topic if they select none."""
    topic = {} if SELECTIONS & options.keys() else {"subscribe": "t"}
    return parse_options({**topic, **STORE, **options}, streaming=streaming)


def test_a_topic_and_a_store_are_enough() -> None:
    options = parsed({})
    assert options == SourceOptions(
        selection=Subscribe(("t",)),
        starting=Earliest(),
        ending=Latest(),
        columns=COLUMNS,
        store=StoreSource(None, tuple(sorted(STORE.items()))),
    )
    assert (options.isolation, options.fail_on_data_loss, options.max_split_bytes) == ("read_committed", True, 67108864)
    assert (options.timestamp_strategy, options.kafka) == ("error", None)
    assert parsed({}, streaming=True).starting == Latest()


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_docs_are_those_of_the_declarations(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert text == renew_tables(text, PAGES[page])


READ: list[tuple[Texts, str, object]] = [
    ({"SUBSCRIBE": "t", "MAXSPLITBYTES": "7"}, "max_split_bytes", 7),
    ({"subscribe": " a, b.c ,,a "}, "selection", Subscribe(("a", "b.c"))),
    ({"subscribePattern": r" \Qa.\E.* "}, "selection", SubscribePattern(r"a\..*")),
    ({"assign": ' {"b":[1,0,1],"a":["2"]} '}, "selection", Assign((("a", 2), ("b", 0), ("b", 1)))),
    ({"includeHeaders": "TRUE"}, "columns", KAFKA_ROWS.columns),
    ({"includeHeaders": "false"}, "columns", COLUMNS),
    ({"columns": "Offset, value,TIMESTAMPTYPE"}, "columns", ("value", "offset", "timestampType")),
    ({"columns": "headers,key"}, "columns", ("key", "headers")),
    ({"columns": "key", "includeHeaders": "true"}, "columns", ("key", "headers")),
    *(
        ({"maxSplitBytes": text}, "max_split_bytes", size)
        for text, size in {"1": 1, "64m": 67108864, " 2 KB ": 2048, "1g": 2**30, "7b": 7, "1tb": 2**40}.items()
    ),
    ({"minPartitions": " 12 "}, "min_partitions", 12),
    ({"maxRecordsPerPartition": "5000000000"}, "max_records_per_partition", 5_000_000_000),
    ({"isolationLevel": "read_uncommitted"}, "isolation", "read_uncommitted"),
    ({"kafka.isolation.level": "READ_UNCOMMITTED"}, "isolation", "read_uncommitted"),
    (
        {"isolationLevel": "read_committed", "kafka.isolation.level": "read_committed"}, "isolation", "read_committed",
    ),
    ({"kafka.isolation.level": "read_committed"}, "kafka", None),  # redundant without a broker, but accepted
    (
        {**BROKER, "kafka.sasl.password": "hush", "kafka.isolation.level": "read_committed"},
        "kafka", (("bootstrap.servers", "127.0.0.1:9092"), ("sasl.password", "hush")),
    ),
    ({"failOnDataLoss": "true"}, "fail_on_data_loss", True),
    ({"failOnDataLoss": "False"}, "fail_on_data_loss", False),
    ({"topicIds": f'{{"t":"{ID}"}}'}, "topic_ids", {"t": Uuid.parse(ID)}),
    ({"subscribePattern": "u.*", "topicIds": f'{{"u1":"{ID}"}}'}, "topic_ids", {"u1": Uuid.parse(ID)}),
    *(
        ({"startingOffsetsByTimestampStrategy": text}, "timestamp_strategy", strategy)
        for text, strategy in {"ERROR": "error", " latest ": "latest", "Latest": "latest"}.items()
    ),
    ({"startingOffsets": '{"t":{"0":-2}}'}, "starting", {("t", 0): Earliest()}),
    ({"endingOffsets": '{"t":{"0":-1}}'}, "ending", {("t", 0): Latest()}),
    ({"startingTimestamp": " 100 ", "endingTimestamp": "200"}, "starting", AtTime(100)),
    ({"startingTimestamp": " 100 ", "endingTimestamp": "200"}, "ending", AtTime(200)),
    ({"startingTimestamp": "6", "endingTimestamp": "6"}, "starting", AtTime(6)),  # an empty range, as in the next case
    ({"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":6}}'}, "ending", {("t", 0): 6}),
    ({"startingOffsets": '{"t":{"0":6}}', "endingOffsets": '{"t":{"0":-1}}'}, "ending", {("t", 0): Latest()}),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":9}}', "endingOffsetsByTimestamp": '{"t":{"0":9}}'},
        "ending", {("t", 0): AtTime(9)},
    ),
    ({"startingOffsets": "latest", "startingTimestamp": "7"}, "starting", AtTime(7)),
]  # fmt: skip


@pytest.mark.parametrize(("options", "field", "value"), READ)
def test_an_option_is_read(options: Texts, field: str, value: object) -> None:
    assert getattr(parsed(options), field) == value


STREAMS: list[tuple[Texts, str, object]] = [
    (
        {
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "5m",
            "maxBytesPerTrigger": "1k",
        },
        "limits", TriggerLimits(10, 1024, 10, 300_000),
    ),
    *(
        ({"maxTriggerDelay": text}, "limits", TriggerLimits(max_delay_ms=milliseconds))
        for text, milliseconds in {
            "15": 15, "15ms": 15, "2 s": 2000, "1min": 60_000, "1H": 3_600_000, "1d": 86_400_000, "1500us": 1, "0": 0,
        }.items()
    ),
    ({"startingOffsets": " Earliest "}, "starting", Earliest()),
    ({"startingOffsets": "LATEST"}, "starting", Latest()),
    (
        {"startingOffsets": '{"t":{"0":23,"1":-1},"u":{"0":-2}}'},
        "starting", {("t", 0): 23, ("t", 1): Latest(), ("u", 0): Earliest()},
    ),
    ({"startingOffsets": ' {"t":{"0":"23"}} '}, "starting", {("t", 0): 23}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "field", "value"), STREAMS)
def test_an_option_of_a_stream_is_read(options: Texts, field: str, value: object) -> None:
    assert getattr(parsed(options, streaming=True), field) == value


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_time_goes_before_times_of_partitions_and_these_before_offsets(side: str) -> None:
    offsets = {f"{side}Offsets": '{"t":{"0":5}}'}
    times = {f"{side}OffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {f"{side}Timestamp": "7"}
    chosen = [getattr(parsed(given), side) for given in (offsets, offsets | times, offsets | times | time)]
    assert chosen == [{("t", 0): 5}, {("t", 0): AtTime(6)}, AtTime(7)]


OFFSETS_REFUSED = [
    "", "first", "5", "[]", "{", "{}", '{"t":{}}', '{"t":5}', '{"t":[5]}', '{"t":{"x":5}}', '{"t":{"0":null}}',
    '{"t":{"0":-3}}', '{"t":{"0":1.5}}', '{"t":{"0":true}}', '{"t":{"-1":5}}', '{"t":{"2147483648":5}}',
    '{"t":{"0":9223372036854775808}}', '{"t":{"0":1,"0":2}}', '{"t":{"0":1,"00":2}}', '{"a b":{"0":1}}',
    '{"t":{"0":"' + "9" * 5000 + '"}}', '{"a":' * 100_000,
]  # fmt: skip
PARTITIONS_REFUSED = [
    "", "t", "[]", "{", '{"t":0}', '{"t":{"0":1}}', "{}", '{"t":[]}', '{"t":[-1]}', '{"t":[0.5]}', '{"t":[true]}',
    '{"t":[2147483648]}', '{"t":[null]}', '{"t":[0],"t":[1]}', '{"a b":[0]}', "[" * 100_000,
    '{"t":[' + "9" * 5000 + "]}",
]  # fmt: skip
# For each row: an option's name, the error, and the values that cause this error.
TEXTS_REFUSED: list[tuple[str, str, list[str]]] = [
    ("subscribe", "the option {} is .*; expected one topic at least", ["", " ", ",", " , "]),
    (
        "subscribe", "the option {} has .*, which is not a topic name",
        ["a b", "a/b", "é", ".", "..", "x" * 250, "a\nb"],
    ),
    ("assign", "the option {} ", PARTITIONS_REFUSED),
    ("subscribePattern", "the option {} is empty", [" "]),
    (
        "columns", "the option {} is .*; expected some of key, value, topic",
        ["", ",", "key,", "keys", "key,key", "key;value"],
    ),
    ("includeHeaders", "the option {} is .*; expected true or false", ["", "yes", "1"]),
    ("failOnDataLoss", "the option {} is 'never'; expected true or false", ["never"]),
    (
        "maxSplitBytes", "the option {} is .*; expected a size of one byte or more",
        ["", "0", "0m", "-1", "1.5m", "64x", "m", "9" * 19 + "p", "9" * 40, "１"],
    ),
    (
        "minPartitions maxRecordsPerPartition", "the option {} is .*; expected a whole number of 1 or more",
        ["", "0", "-3", "1_000", "2.0", "ten", "9" * 19, "9" * 5000],
    ),
    (
        "maxTriggerDelay", "the option {} is .*; expected a time such as",
        ["", "1.5s", "-1s", "5 minutes", "s", "9" * 19 + "d"],
    ),
    (
        "maxOffsetsPerTrigger minOffsetsPerTrigger maxBytesPerTrigger", "the option {} is .*; expected",
        ["", "0", "-1", "many"],
    ),
    (
        "isolationLevel kafka.isolation.level",
        "the option {} is 'all'; expected read_committed or read_uncommitted", ["all"],
    ),
    (
        "topicIds", "the option {} is .*; expected JSON such as",
        ["", "t", '["t"]', '{"t":1}', '{"t":null}', '{"t":"a","t":"b"}'],
    ),
    ("topicIds", "the option {}: 'abc' is not a Kafka uuid", ['{"t":"abc"}']),
    ("startingOffsets endingOffsets", "{} ", OFFSETS_REFUSED),
    (
        "startingOffsetsByTimestamp endingOffsetsByTimestamp", "the option {} ",
        ["", "earliest", "7", "{}", '{"t":{"0":-1}}', '{"t":{"0":"2020-01-01"}}'],
    ),
    (
        "startingTimestamp endingTimestamp", "the option {} is .*; expected a whole number of 0 or more",
        ["", "-1", "2020-01-01", "1.0", "9223372036854775808"],
    ),
    ("startingOffsetsByTimestampStrategy", "the option {} is 'earliest'; expected error or latest", ["earliest"]),
    ("settings", "the option {} is ''", [" "]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sentence", "text"),
    [
        pytest.param(name, sentence.format(name), text, id=f"{name}-{text[:30]}")
        for names, sentence, texts in TEXTS_REFUSED
        for name in names.split()
        for text in texts
    ],
)
def test_a_text_that_an_option_cannot_have_is_refused(name: str, sentence: str, text: str) -> None:
    check_refused({name: text}, sentence)


def check_refused(options: Texts, sentence: str, *, streaming: bool = False) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parsed(options, streaming=streaming)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


TOGETHER: list[tuple[Texts, str]] = [
    ({"subscribe": "t", "assign": '{"t":[0]}'}, "exactly one of .* not subscribe and assign"),
    ({"columns": "headers", "includeHeaders": "false"}, "columns has headers, but includeHeaders is false"),
    (
        {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "10"},
        "minOffsetsPerTrigger is 10, more than maxOffsetsPerTrigger, 9",
    ),
    (
        {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        r"isolationLevel is read_committed, but kafka.isolation.level is read_uncommitted",
    ),
    ({"topicIds": f'{{"u":"{ID}"}}'}, "the option topicIds names u, not among the topics to read"),
    ({"assign": '{"t":[0]}', "topicIds": f'{{"u":"{ID}"}}'}, "names u, not among"),
    (
        {"kafka.security.protocol": "SSL"},
        "the option kafka.bootstrap.servers is missing, but kafka.security.protocol is set",
    ),
    ({"kafka.bootstrap.servers": " "}, "the option kafka.bootstrap.servers is empty"),
    *(
        ({**BROKER, f"kafka.{name}": "x"}, f"the option kafka.{name} is not supported: ")
        for name in (
            "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer", "value.deserializer",
        )
    ),
    (
        {"key.prefix": "a", "rsm.config.key.prefix": "b"},
        r"the option key\.prefix is given twice, with rsm\.config\. and without",
    ),
    ({PAIR: "K1,k1"}, "key pairs k1 and K1 differ only in case"),
    ({"startingOffsets": "latest"}, "the option startingOffsets is latest"),
    ({"startingOffsets": '{"t":{"0":5,"1":-1}}'}, "the option startingOffsets has -1, .* for t-1"),
    ({"endingOffsets": "earliest"}, "the option endingOffsets is earliest"),
    ({"endingOffsets": '{"t":{"0":5,"1":-2}}'}, "the option endingOffsets has -2, .* for t-1"),
    (
        {"startingOffsets": '{"t":{"0":-2,"1":6}}', "endingOffsets": '{"t":{"0":1,"1":5}}'},
        "t-1 would start at 6 .startingOffsets., after its end at 5",
    ),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":6}}', "endingOffsetsByTimestamp": '{"t":{"0":5}}'},
        "t-0 would start at 6 .startingOffsetsByTimestamp., after its end at 5",
    ),
    (
        {"startingTimestamp": "6", "endingTimestamp": "5"},
        "startingTimestamp is 6, after endingTimestamp, which is 5",
    ),
    (
        {"startingOffsets": '{"t":{"0":1,"1":1}}', "endingOffsets": '{"t":{"0":1}}'},
        "startingOffsets names t-1 and endingOffsets does not: both must name the same partitions",
    ),
    (
        {"startingOffsetsByTimestamp": '{"t":{"0":1}}', "endingOffsetsByTimestamp": '{"t":{"0":1},"u":{"0":1}}'},
        "endingOffsetsByTimestamp names u-0 and startingOffsetsByTimestamp does not",
    ),
    # For an unknown name, the error suggests the nearest known one.
    ({"startingOffset": "x"}, "the option startingoffset is not known; did you mean startingOffsets"),
    ({"maxSplitByte": "x"}, "did you mean maxSplitBytes"),
    ({"storage.s3.bucket": "x"}, r"did you mean storage\.s3\.bucket\.name"),
    ({"bootstrap.servers": "x"}, r"did you mean kafka\.bootstrap\.servers"),
    ({"failOnDataloss.": "x"}, "did you mean failOnDataLoss"),
    ({"path": "x"}, "the option path is not known: the source has no path"),
    ({"topic": "x"}, "the option topic is not known: it is an option for writing"),
    ({"zzzzzz": "x"}, "the option zzzzzz is not known$"),
    ({"BEGIN PRIVATE KEY " * 50: "x"}, "^.{0,119}$"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), TOGETHER)
def test_options_that_cannot_be_together_or_are_none_are_refused(options: Texts, sentence: str) -> None:
    check_refused(options, sentence)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    check_refused({name: "latest"}, f"the option {name} is for batch queries", streaming=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (STORE, r"exactly one of subscribe, subscribePattern, assign .* not none"),
        (
            {"subscribe": "t", "storage.root": "/r"},
            r"no store is named: set the option settings .* or storage\.backend",
        ),
    ],
)
def test_a_query_without_topics_or_a_store_is_refused(options: Texts, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_options(options, streaming=False)


WITHOUT_MEANING = "groupIdPrefix, kafkaConsumer.pollTimeoutMs, fetchOffset.numRetries, fetchOffset.retryIntervalMs"


@pytest.mark.parametrize(
    ("options", "streaming", "warnings"),
    [
        (
            {"maxOffsetsPerTrigger": "9", "maxTriggerDelay": "1m"}, False,
            ["the options maxOffsetsPerTrigger, maxTriggerDelay are only for streams: this batch query ignores them"],
        ),
        (
            dict.fromkeys(WITHOUT_MEANING.split(", "), "x"), True,
            [f"the options {WITHOUT_MEANING} have no meaning here and are ignored"],
        ),
        ({"maxOffsetsPerTrigger": "9"}, True, []),
    ],
)  # fmt: skip
def test_options_that_change_nothing_are_told_of_once(
    options: Texts, streaming: bool, warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        parsed(options, streaming=streaming)
    assert caplog.messages == warnings


@pytest.mark.parametrize(
    ("options", "settings", "properties"),
    [
        ({"settings": " f "}, "f", {}),
        ({"settings": "f", "rsm.config.key.prefix": "p"}, "f", {"key.prefix": "p"}),
        # Spark passes names in lower case.
        (
            {**STORE, PAIR: "other, Key-A", f"{PAIR}.key-a.public.key.file": "/pub",
             f"{PAIR}.key-a.private.key.file": "/priv"},
            None,
            {**STORE, PAIR: "other, Key-A", f"{PAIR}.Key-A.public.key.file": "/pub",
             f"{PAIR}.Key-A.private.key.file": "/priv"},
        ),
        # A user's store class has custom options.
        (
            {"storage.backend.class": "my.store:Store", "storage.my.thing": "1"}, None,
            {"storage.backend.class": "my.store:Store", "storage.my.thing": "1"},
        ),
        ({"settings": "f", "storage.my.thing": "1"}, "f", {"storage.my.thing": "1"}),
    ],
)  # fmt: skip
def test_the_store_is_named_by_a_file_and_by_options(options: Texts, settings: str | None, properties: Texts) -> None:
    store = parse_options({"subscribe": "t", **options}, streaming=False).store
    assert store == StoreSource(settings, tuple(sorted(properties.items())))


def test_options_travel_and_show_no_secret() -> None:
    options = parsed({**BROKER, "kafka.sasl.password": "hush", "topicIds": f'{{"t":"{ID}"}}'}, streaming=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)


NAMES = st.sampled_from(
    ["subscribe", "assign", "startingOffsets", "startingTimestamp", "maxSplitBytes", "columns", "topicIds",
     "minPartitions", "maxTriggerDelay", "settings", "kafka.bootstrap.servers", "encryption.key.pairs",
     "subscribePattern"]
)  # fmt: skip


@given(st.dictionaries(NAMES, st.text(max_size=20)), st.booleans())
def test_any_texts_are_options_or_one_error_of_ours(texts: dict[str, str], streaming: bool) -> None:
    try:
        options: Any = parse_options({**STORE, **texts}, streaming=streaming)
    except ConfigError:
        return
    assert [field.name for field in fields(options)] == [field.name for field in fields(SourceOptions)]
