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
from tieredstore.model import Earliest, Latest, Uuid
from tieredstore.partitions.selections import Assign, Subscribe, SubscribePattern
from tieredstore.spark.source.options import SourceOptions, parse_options
from tieredstore.spark.source.rows import COLUMNS, KAFKA_ROWS
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.trigger_limits import TriggerLimits

STORE = {"storage.backend.class": "filesystem", "storage.root": "/r"}
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parsed(streaming: bool = False, /, without: str = "", **options: str) -> SourceOptions:
    """Options with ``_`` for the dots in their names, beside a store and a topic."""
    written = {name.replace("_", "."): text for name, text in options.items()}
    given = {"subscribe": "t", **STORE, **written}
    given.pop(without, None)
    return parse_options(given, streaming=streaming)


def refused(sentence: str, streaming: bool = False, /, **options: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parsed(streaming, **options)
    assert "\n" not in str(caught.value)


def test_a_topic_and_a_store_are_enough() -> None:
    options = parsed()
    assert options == SourceOptions(
        selection=Subscribe(("t",)),
        starting=Earliest(),
        ending=Latest(),
        columns=COLUMNS,
        store=StoreSource(None, tuple(sorted(STORE.items()))),
    )
    assert (options.isolation, options.fail_on_data_loss, options.max_split_bytes) == ("read_committed", True, 67108864)


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_docs_are_those_of_the_declarations(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert text == renew_tables(text, PAGES[page])


def test_a_stream_starts_at_the_end_by_default() -> None:
    assert parsed(True).starting == Latest()


def test_names_are_known_in_any_case() -> None:
    upper = {name.upper(): text for name, text in {"subscribe": "t", "maxSplitBytes": "7", **STORE}.items()}
    assert parse_options(upper, streaming=False) == parsed(maxSplitBytes="7")


class TestSelection:
    def test_topics_are_separated_by_commas_and_trimmed(self) -> None:
        assert parsed(subscribe=" a, b.c ,,a ").selection == Subscribe(("a", "b.c"))

    def test_a_pattern_is_javas(self) -> None:
        chosen = parsed(without="subscribe", subscribePattern=r" \Qa.\E.* ").selection
        assert chosen == SubscribePattern(r"a\..*")

    def test_partitions_are_json(self) -> None:
        chosen = parsed(without="subscribe", assign=' {"b":[1,0,1],"a":["2"]} ').selection
        assert chosen == Assign((("a", 2), ("b", 0), ("b", 1)))

    @pytest.mark.parametrize("text", ["", " ", ",", " , "])
    def test_no_topic_is_refused(self, text: str) -> None:
        refused("the option subscribe is .*; expected is one topic at least", subscribe=text)

    @pytest.mark.parametrize("text", ["a b", "a/b", "é", ".", "..", "x" * 250, "a\nb"])
    def test_what_is_no_topics_name_is_refused(self, text: str) -> None:
        refused("the option subscribe has .*, which is no topic's name", subscribe=text)

    def test_none_and_two_of_them_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"exactly one of subscribe, subscribePattern, assign .* not none"):
            parsed(without="subscribe")
        refused("exactly one of .* not subscribe and assign", assign='{"t":[0]}')

    @pytest.mark.parametrize(
        "text",
        ["", "t", "[]", "{", '{"t":0}', '{"t":{"0":1}}', "{}", '{"t":[]}', '{"t":[-1]}', '{"t":[0.5]}', '{"t":[true]}',
         '{"t":[2147483648]}', '{"t":[null]}', '{"t":[0],"t":[1]}', '{"a b":[0]}', "[" * 100_000,
         '{"t":[' + "9" * 5000 + "]}"],
    )  # fmt: skip
    def test_what_is_no_list_of_partitions_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="the option assign ") as caught:
            parsed(without="subscribe", assign=text)
        assert len(str(caught.value)) < 300

    def test_an_empty_pattern_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="the option subscribePattern is empty"):
            parsed(without="subscribe", subscribePattern=" ")


class TestColumns:
    def test_headers_come_when_they_are_asked_for(self) -> None:
        assert parsed(includeHeaders="TRUE").columns == KAFKA_ROWS.columns
        assert parsed(includeHeaders="false").columns == COLUMNS

    def test_columns_come_in_the_order_of_the_schema(self) -> None:
        assert parsed(columns="Offset, value,TIMESTAMPTYPE").columns == ("value", "offset", "timestampType")

    def test_headers_among_the_columns_are_asked_for_and_asking_for_headers_adds_them(self) -> None:
        assert parsed(columns="headers,key").columns == ("key", "headers")
        assert parsed(columns="key", includeHeaders="true").columns == ("key", "headers")

    @pytest.mark.parametrize("text", ["", ",", "key,", "keys", "key,key", "key;value"])
    def test_what_are_no_columns_is_refused(self, text: str) -> None:
        refused("the option columns is .*; expected is some of key, value, topic", columns=text)

    def test_headers_both_wanted_and_refused_are_a_contradiction(self) -> None:
        refused("columns has headers and includeHeaders is false", columns="headers", includeHeaders="false")

    @pytest.mark.parametrize("text", ["", "yes", "1"])
    def test_headers_are_asked_for_by_true_alone(self, text: str) -> None:
        refused("the option includeHeaders is .*; expected is true or false", includeHeaders=text)


class TestSizesOfTasks:
    def test_bytes_are_written_as_sparks_are(self) -> None:
        for text, size in {"1": 1, "64m": 67108864, " 2 KB ": 2048, "1g": 2**30, "7b": 7, "1tb": 2**40}.items():
            assert parsed(maxSplitBytes=text).max_split_bytes == size

    @pytest.mark.parametrize("text", ["", "0", "0m", "-1", "1.5m", "64x", "m", "9" * 19 + "p", "9" * 40, "１"])
    def test_what_is_no_size_is_refused(self, text: str) -> None:
        refused("the option maxSplitBytes is .*; expected is a size of one byte or more", maxSplitBytes=text)

    def test_numbers_of_partitions_and_records(self) -> None:
        options = parsed(minPartitions=" 12 ", maxRecordsPerPartition="5000000000")
        assert (options.min_partitions, options.max_records_per_partition) == (12, 5_000_000_000)

    @pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition"])
    @pytest.mark.parametrize("text", ["", "0", "-3", "1_000", "2.0", "ten", "9" * 19, "9" * 5000])
    def test_what_is_no_such_number_is_refused(self, name: str, text: str) -> None:
        refused(f"the option {name} is .*; expected is a whole number of 1 or more", **{name: text})


class TestTriggers:
    def test_limits_of_a_stream(self) -> None:
        options = parsed(
            True,
            maxOffsetsPerTrigger="10",
            minOffsetsPerTrigger="10",
            maxTriggerDelay="5m",
            maxBytesPerTrigger="1k",
        )
        assert options.limits == TriggerLimits(10, 1024, 10, 300_000)

    def test_times_are_written_as_sparks_are(self) -> None:
        times = {
            "15": 15,
            "15ms": 15,
            "2 s": 2000,
            "1min": 60_000,
            "1H": 3_600_000,
            "1d": 86_400_000,
            "1500us": 1,
            "0": 0,
        }
        for text, milliseconds in times.items():
            assert parsed(True, maxTriggerDelay=text).limits.max_delay_ms == milliseconds

    @pytest.mark.parametrize("text", ["", "1.5s", "-1s", "5 minutes", "s", "9" * 19 + "d"])
    def test_what_is_no_time_is_refused(self, text: str) -> None:
        refused("the option maxTriggerDelay is .*; expected is a time such as", True, maxTriggerDelay=text)

    @pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"])
    @pytest.mark.parametrize("text", ["", "0", "-1", "many"])
    def test_what_is_no_limit_is_refused(self, name: str, text: str) -> None:
        refused(f"the option {name} is .*; expected is", True, **{name: text})

    def test_a_least_above_the_most_is_refused(self) -> None:
        both = {"maxOffsetsPerTrigger": "9", "minOffsetsPerTrigger": "10"}
        refused("minOffsetsPerTrigger is 10, which is more than maxOffsetsPerTrigger: 9", True, **both)

    def test_a_batch_warns_once_and_takes_no_notice(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            parsed(maxOffsetsPerTrigger="9", maxTriggerDelay="1m")
        assert [record.getMessage() for record in caplog.records] == [
            "the options maxOffsetsPerTrigger, maxTriggerDelay are for streams, a batch takes no notice of them"
        ]


class TestIsolation:
    def test_either_name_decides(self) -> None:
        assert parsed(isolationLevel="read_uncommitted").isolation == "read_uncommitted"
        assert parsed(kafka_isolation_level="READ_UNCOMMITTED").isolation == "read_uncommitted"
        assert (
            parsed(isolationLevel="read_committed", kafka_isolation_level="read_committed").isolation
            == "read_committed"
        )

    def test_the_level_alone_asks_for_no_broker(self) -> None:
        assert parsed(kafka_isolation_level="read_committed").kafka is None

    def test_two_levels_are_refused(self) -> None:
        refused(
            r"isolationLevel is read_committed and kafka.isolation.level is read_uncommitted",
            isolationLevel="read_committed",
            kafka_isolation_level="read_uncommitted",
        )

    @pytest.mark.parametrize("name", ["isolationLevel", "kafka_isolation_level"])
    def test_another_level_is_refused(self, name: str) -> None:
        written = name.replace("_", ".")
        refused(f"the option {written} is 'all'; expected is read_committed or read_uncommitted", **{name: "all"})


class TestDataLoss:
    def test_it_fails_unless_told_otherwise(self) -> None:
        assert parsed(failOnDataLoss="true").fail_on_data_loss
        assert not parsed(failOnDataLoss="False").fail_on_data_loss

    def test_another_word_is_refused(self) -> None:
        refused("the option failOnDataLoss is 'never'; expected is true or false", failOnDataLoss="never")


class TestTopicIds:
    ID = "AAAAAAAAQACAAAAAAAAAAA"

    def test_they_tell_which_life_of_a_topic_is_meant(self) -> None:
        assert parsed(topicIds=f'{{"t":"{self.ID}"}}').topic_ids == {"t": Uuid.parse(self.ID)}

    @pytest.mark.parametrize("text", ["", "t", '["t"]', '{"t":1}', '{"t":null}', '{"t":"a","t":"b"}'])
    def test_what_is_no_json_of_ids_is_refused(self, text: str) -> None:
        refused("the option topicIds is .*; expected is JSON such as", topicIds=text)

    def test_what_is_no_id_is_refused(self) -> None:
        refused("the option topicIds: 'abc' is not a Kafka uuid", topicIds='{"t":"abc"}')

    def test_a_topic_that_is_not_read_is_refused(self) -> None:
        refused("the option topicIds names u, which is not among the topics to read", topicIds=f'{{"u":"{self.ID}"}}')
        with pytest.raises(ConfigError, match="names u, which is not"):
            parsed(without="subscribe", assign='{"t":[0]}', topicIds=f'{{"u":"{self.ID}"}}')

    def test_a_pattern_may_find_any_topic(self) -> None:
        chosen = parsed(without="subscribe", subscribePattern="u.*", topicIds=f'{{"u1":"{self.ID}"}}')
        assert chosen.topic_ids == {"u1": Uuid.parse(self.ID)}


class TestBroker:
    def test_the_client_gets_what_begins_with_kafka_but_for_the_level(self) -> None:
        options = parse_options(
            {
                "subscribe": "t",
                **STORE,
                **BROKER,
                "kafka.sasl.password": "hush",
                "kafka.isolation.level": "read_committed",
            },
            streaming=False,
        )
        assert options.kafka == (("bootstrap.servers", "127.0.0.1:9092"), ("sasl.password", "hush"))

    def test_without_it_the_bucket_is_read_alone(self) -> None:
        assert parsed().kafka is None

    def test_its_secrets_are_not_shown(self) -> None:
        options = parse_options({"subscribe": "t", **STORE, **BROKER, "kafka.sasl.password": "hush"}, streaming=False)
        assert "hush" not in repr(options)

    def test_client_options_without_brokers_are_refused(self) -> None:
        refused(
            "the option kafka.bootstrap.servers is missing beside kafka.security.protocol",
            kafka_security_protocol="SSL",
        )
        refused("the option kafka.bootstrap.servers is empty", kafka_bootstrap_servers=" ")

    @pytest.mark.parametrize(
        "name",
        ["auto_offset_reset", "enable_auto_commit", "interceptor_classes", "key_deserializer", "value_deserializer"],
    )
    def test_what_sparks_source_refuses_is_refused(self, name: str) -> None:
        written = name.replace("_", ".")
        refused(
            f"the option kafka.{written} is not supported: ", kafka_bootstrap_servers="h:1", **{f"kafka_{name}": "x"}
        )


class TestStore:
    def test_a_settings_file_is_enough(self) -> None:
        assert parse_options({"subscribe": "t", "settings": " f "}, streaming=False).store == StoreSource("f", ())

    def test_the_stores_options_go_with_the_file(self) -> None:
        options = parse_options({"subscribe": "t", "settings": "f", "rsm.config.key.prefix": "p"}, streaming=False)
        assert options.store == StoreSource("f", (("key.prefix", "p"),))

    def test_no_store_is_refused(self) -> None:
        with pytest.raises(
            ConfigError, match=r"nothing names the store: give the option settings, .* or storage\.backend"
        ):
            parse_options({"subscribe": "t", "storage.root": "/r"}, streaming=False)
        with pytest.raises(ConfigError, match="the option settings is ''"):
            parse_options({"subscribe": "t", "settings": " "}, streaming=False)

    def test_an_option_given_with_and_without_prefix_is_refused(self) -> None:
        options = {"key.prefix": "a", "rsm.config.key.prefix": "b"}
        with pytest.raises(ConfigError, match=r"the option key\.prefix is given twice, with rsm\.config\. and without"):
            parse_options({"subscribe": "t", **STORE, **options}, streaming=False)

    def test_key_pairs_get_the_case_of_their_ids_back(self) -> None:
        pair = "encryption.key.pairs"
        options = {f"{pair}.key-a.public.key.file": "/pub", f"{pair}.key-a.private.key.file": "/priv"}
        store = parse_options({"subscribe": "t", **STORE, pair: "other, Key-A", **options}, streaming=False).store
        assert (f"{pair}.Key-A.public.key.file", "/pub") in store.properties
        assert (f"{pair}.Key-A.private.key.file", "/priv") in store.properties

    def test_key_pairs_that_differ_in_case_alone_are_refused(self) -> None:
        options = {"subscribe": "t", **STORE, "encryption.key.pairs": "K1,k1"}
        with pytest.raises(ConfigError, match="key pairs k1 and K1 differ in case alone"):
            parse_options(options, streaming=False)

    def test_a_users_own_store_class_has_options_of_its_own(self) -> None:
        options = {"subscribe": "t", "storage.backend.class": "my.store:Store", "storage.my.thing": "1"}
        store = parse_options(options, streaming=False).store
        assert ("storage.my.thing", "1") in store.properties
        store = parse_options({"subscribe": "t", "settings": "f", "storage.my.thing": "1"}, streaming=False).store
        assert store.properties == (("storage.my.thing", "1"),)


class TestUnknownOptions:
    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("startingOffset", "the option startingoffset is not known; the nearest is startingOffsets"),
            ("maxSplitByte", "the nearest is maxSplitBytes"),
            ("storage.s3.bucket", r"the nearest is storage\.s3\.bucket\.name"),
            ("bootstrap.servers", r"the nearest is kafka\.bootstrap\.servers"),
            ("failOnDataloss.", "the nearest is failOnDataLoss"),
            ("path", "the option path is not known: the source has no path"),
            ("topic", "the option topic is not known: that is an option for writing"),
            ("zzzzzz", "the option zzzzzz is not known$"),
        ],
    )
    def test_the_nearest_of_all_names_is_told(self, name: str, sentence: str) -> None:
        with pytest.raises(ConfigError, match=sentence):
            parse_options({"subscribe": "t", **STORE, name: "x"}, streaming=False)

    def test_a_stray_text_is_cut(self) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_options({"subscribe": "t", **STORE, "BEGIN PRIVATE KEY " * 50: "x"}, streaming=False)
        assert len(str(caught.value)) < 120

    def test_options_of_no_meaning_here_are_taken_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        names = "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"
        with caplog.at_level(logging.WARNING):
            parse_options({"subscribe": "t", **STORE, **dict.fromkeys(names, "x")}, streaming=True)
        assert [record.getMessage() for record in caplog.records] == [
            f"the options {', '.join(names)} have no meaning here and are not looked at"
        ]

    def test_nothing_is_said_when_nothing_is_odd(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            parsed(True, maxOffsetsPerTrigger="9")
        assert not caplog.records


def test_options_travel() -> None:
    options = parse_options(
        {"subscribe": "t", **STORE, **BROKER, "topicIds": f'{{"t":"{TestTopicIds.ID}"}}'}, streaming=True
    )
    assert pickle.loads(pickle.dumps(options)) == options


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
