"""Object keys: written, parsed back from a listing, and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment
from tests.support.paths import GOLDEN
from tieredstore.errors import ConfigError
from tieredstore.format.keys import Suffix, displayed_key, listing_prefix, main_path, object_key, parse_key
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid

ID = "adh9f8BMS4anaUnD8KWfWg"
TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"
KEY = f"topic1-{TOPIC_ID}/7/00000000000000000023-{ID}.log"

uuids = st.builds(Uuid, st.binary(min_size=16, max_size=16))
topics = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=40)
prefixes = st.sampled_from(["", "prefix/", "my/pre fix/p-", "a.b-", "/"])
offsets = st.integers(0, 2**63 - 1)


def segment_id(
    topic: str = "topic1", partition: int = 7, topic_id: str = TOPIC_ID, segment: str = ID
) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(TopicIdPartition(Uuid.parse(topic_id), topic, partition), Uuid.parse(segment))


segment_ids = st.builds(
    RemoteLogSegmentId, st.builds(TopicIdPartition, uuids, topics, st.integers(0, 2**31 - 1)), uuids
)


def test_the_documented_example_is_written() -> None:
    zero = "AAAAAAAAAAAAAAAAAAAAAA"
    path = main_path(segment_id("topic", 7, "AAAAAAAAAAAAAAAAAAAAAQ", zero), 1234)
    assert object_key("prefix/", path, Suffix.LOG) == (
        f"prefix/topic-AAAAAAAAAAAAAAAAAAAAAQ/7/00000000000000001234-{zero}.log"
    )
    assert main_path(segment_id(), 23) == KEY.removesuffix(".log")


@given(prefixes, segment_ids, offsets, st.sampled_from(Suffix))
def test_every_key_that_is_written_is_parsed_back(
    prefix: str, segment: RemoteLogSegmentId, offset: int, suffix: Suffix
) -> None:
    path = main_path(segment, offset)
    key = parse_key(prefix, object_key(prefix, path, suffix))
    assert key is not None
    assert (key.segment_id, key.start_offset, key.suffix, key.main_path) == (segment, offset, suffix, path)


@pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)
def test_keys_of_the_plugin_are_parsed_and_written_back(segment: GoldenSegment) -> None:
    prefix, _, path = segment.main_path.rpartition(f"{segment.topic}-{segment.topic_id}/")
    path = f"{segment.topic}-{segment.topic_id}/{path}"
    for suffix in Suffix:
        assert segment.stored(suffix.value).is_file()
        key = parse_key(prefix, object_key(prefix, path, suffix))
        assert key is not None
        assert key.start_offset == segment.base_offset
        assert key.segment_id.topic_id_partition.topic == segment.topic
        assert main_path(key.segment_id, key.start_offset) == path


def test_every_object_of_the_golden_stores_is_recognised() -> None:
    keys = [path for path in GOLDEN.glob("*/store/**/*") if path.is_file() and "prefix" not in path.parts[-4]]
    assert len(keys) > 100
    for path in keys:
        assert parse_key("", "/".join(path.parts[-3:])) is not None, path


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "nothing"),
        (KEY.removesuffix(".log"), "no suffix"),
        (KEY.replace(".log", ".index"), "an unknown suffix"),
        (KEY.replace(".log", ".LOG"), "suffixes are lower case"),
        (KEY + ".log", "two suffixes"),
        (KEY.replace("/7/", "/"), "no partition"),
        (KEY.replace("/7/", "/7/7/"), "a folder too many"),
        (KEY.replace("/7/", "/07/"), "a padded partition"),
        (KEY.replace("/7/", "/-7/"), "a negative partition"),
        (KEY.replace("/7/", "//"), "an empty partition"),
        (KEY.replace("/7/", "/2147483648/"), "a partition over int32"),
        (KEY.replace("/7/", "/٧/"), "the partition is always written in ASCII"),
        (KEY.replace("topic1-", "-"), "an empty topic"),
        (KEY.replace("topic1-", ""), "no topic"),
        (KEY.replace("topic1-", "topic1_"), "no dash before the topic id"),
        (KEY.replace(TOPIC_ID, TOPIC_ID[:-1]), "a short topic id"),
        (KEY.replace(TOPIC_ID, TOPIC_ID[:-1] + "R"), "a topic id that Kafka spells otherwise"),
        (KEY.replace(TOPIC_ID, "+" + TOPIC_ID[1:]), "a topic id in the other alphabet"),
        (KEY.replace(TOPIC_ID, "é" + TOPIC_ID[1:]), "a topic id that is not base64"),
        (KEY.replace(f"-{ID}", f"_{ID}"), "no dash before the segment id"),
        (KEY.replace(ID, ID[:-1]), "a short segment id"),
        (KEY.replace("/0000", "/000"), "19 digits"),
        (KEY.replace("/0000", "/-0000"), "a negative offset"),
        (KEY.replace("/0000", "/+0000"), "a sign"),
        (KEY.replace("/0000", "/00_0"), "an underscore"),
        (KEY.replace("00000000000000000023", "09223372036854775808"), "an offset over int64"),
        (KEY.replace("/0000", "/" + "0" * 5000), "an absurd number of digits"),
        (KEY.replace("/0000", "/²000"), "a superscript is a digit, but not a decimal one"),
        ("other/" + KEY, "under another prefix"),
    ],
)
def test_a_key_that_is_not_ours_is_none(key: str, why: str) -> None:
    assert parse_key("", KEY) is not None
    assert parse_key("", key) is None, why


@given(st.text(max_size=80))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    key = parse_key("", text)
    assert key is None or f"{key.main_path}.{key.suffix.value}" == text


def test_a_key_outside_of_the_prefix_is_none() -> None:
    assert parse_key("prefix/", KEY) is None
    assert parse_key("prefix/", "prefix/" + KEY) is not None


def test_offsets_in_the_digits_of_another_locale_are_read_and_found_again_as_written() -> None:
    arabic = KEY.replace("00000000000000000023", "٠" * 18 + "٢٣")
    key = parse_key("", arabic)
    assert key is not None
    assert key.start_offset == 23
    assert f"{key.main_path}.log" == arabic
    assert main_path(key.segment_id, key.start_offset) + ".log" == KEY
    assert key == parse_key("", KEY)


@pytest.mark.parametrize(
    ("segment", "offset"),
    [
        (segment_id(topic=""), 0),
        (segment_id(topic="a/b"), 0),
        (segment_id(partition=-1), 0),
        (segment_id(partition=2**31), 0),
        (segment_id(), -1),
        (segment_id(), 2**63),
    ],
)
def test_a_segment_that_has_no_key_is_refused(segment: RemoteLogSegmentId, offset: int) -> None:
    with pytest.raises(ConfigError):
        main_path(segment, offset)


@given(prefixes, segment_ids, offsets, st.integers(0, 3))
def test_a_listing_prefix_starts_the_keys_that_it_asks_for(
    prefix: str, segment: RemoteLogSegmentId, offset: int, parts: int
) -> None:
    where = segment.topic_id_partition
    wanted = listing_prefix(
        prefix,
        where.topic if parts > 0 else None,
        where.topic_id if parts > 1 else None,
        where.partition if parts > 2 else None,
    )
    key = object_key(prefix, main_path(segment, offset), Suffix.LOG)
    assert key.startswith(wanted)
    assert wanted.count("/") - prefix.count("/") == max(0, parts - 1)


def test_a_listing_of_partition_1_does_not_ask_for_partition_10() -> None:
    wanted = listing_prefix("p/", "topic1", Uuid.parse(TOPIC_ID), 1)
    assert wanted == f"p/topic1-{TOPIC_ID}/1/"


def test_a_partition_without_the_topic_id_cannot_narrow_a_listing() -> None:
    assert listing_prefix("p/", "topic1", None, 1) == "p/topic1-"
    assert listing_prefix("p/", None, Uuid.parse(TOPIC_ID), 1) == "p/"


@pytest.mark.parametrize(
    ("key", "prefix", "masked", "shown"),
    [
        (f"secret/{KEY}", "secret/", False, f"secret/{KEY}"),
        (f"secret/{KEY}", "secret/", True, f"<prefix>/{KEY}"),
        (f"secret/p-{KEY}", "secret/p-", True, f"<prefix>/{KEY}"),
        (KEY, "", True, f"<prefix>/{KEY}"),
        (f"older secret/{KEY}", "secret/", True, f"<prefix>/{KEY.rpartition('/')[2]}"),
    ],
)
def test_a_masked_prefix_is_not_shown(key: str, prefix: str, masked: bool, shown: str) -> None:
    assert displayed_key(key, prefix, masked) == shown


@given(st.one_of(uuids.map(str), st.text("AQgw-_+/=é", max_size=24)))
def test_a_uuid_is_spelled_one_way(text: str) -> None:
    for end in "AQgwBZ_=":
        spelled = Uuid.parse_canonical(text[:-1] + end)
        try:
            parsed = Uuid.parse(text[:-1] + end)
        except ConfigError:
            parsed = None
        assert spelled == (parsed if str(parsed) == text[:-1] + end else None)
