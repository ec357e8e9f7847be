"""Options of batch queries, with the records or the errors that they lead to, in readers and in a real Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.golden.records import Row
from tests.support.records.topic_buckets import ORDERS, PAYMENTS

RecordPlace = tuple[str, int, int]
"""Topic, partition and offset."""


def all_of(topic: str, partition: int, *offsets: int) -> list[RecordPlace]:
    return [(topic, partition, offset) for offset in range(*offsets)]


EVERYTHING = {"orders": all_of("orders", 0, 100) + all_of("orders", 1, 50), "payments": all_of("payments", 0, 2000)}


def places(rows: list[Row]) -> list[RecordPlace]:
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


def json_of(**partitions: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(number): value for number, value in of.items()} for topic, of in partitions.items()})


_ORDERS = {"subscribe": "orders"}

READINGS: dict[str, tuple[dict[str, Any], list[RecordPlace]]] = {
    "one topic": ({"subscribe": "payments"}, EVERYTHING["payments"]),
    "several topics": ({"subscribe": " orders , payments,orders"}, EVERYTHING["orders"] + EVERYTHING["payments"]),
    "a pattern": ({"subscribePattern": "ord.*|pay"}, EVERYTHING["orders"]),
    "a pattern that nothing has": ({"subscribePattern": "order"}, []),
    "assigned partitions": ({"assign": '{"orders":[1]}'}, EVERYTHING["orders"][100:]),
    "earliest and latest": (
        {"subscribe": "orders", "startingOffsets": "EARLIEST", "endingOffsets": "Latest"}, EVERYTHING["orders"],
    ),
    "offsets": (
        {
            "subscribe": "orders",
            "startingOffsets": json_of(orders={0: 95, 1: -2}),
            "endingOffsets": json_of(orders={0: -1, 1: 3}),
        },
        all_of("orders", 0, 95, 100) + all_of("orders", 1, 3),
    ),
    "the end as a start": (
        {"subscribe": "orders", "startingOffsets": json_of(orders={0: 100, 1: 49})}, all_of("orders", 1, 49, 50),
    ),
    "a time": (
        {"subscribe": "orders", "startingTimestamp": 4001, "endingTimestamp": 4800},
        all_of("orders", 0, 41, 48) + all_of("orders", 1, 41, 48),
    ),
    "times of partitions": (
        {
            "subscribe": "orders",
            "startingOffsetsByTimestamp": json_of(orders={0: 9900, 1: 0}),
            "endingOffsetsByTimestamp": json_of(orders={0: 10**9, 1: 101}),
        },
        all_of("orders", 0, 99, 100) + all_of("orders", 1, 2),
    ),
    "a time goes before offsets": (
        {
            "assign": '{"orders":[0]}',
            "startingTimestamp": 9800,
            "startingOffsetsByTimestamp": json_of(orders={0: 0}),
            "startingOffsets": "earliest",
        },
        all_of("orders", 0, 98, 100),
    ),
    "the end where a time has no record": (
        {
            "subscribe": "orders",
            "startingTimestamp": 4900,
            "startingOffsetsByTimestampStrategy": "latest",
            "endingTimestamp": 5100,
        },
        all_of("orders", 0, 49, 51) + all_of("orders", 1, 49, 50),
    ),
    "no later than the latest": (
        {"subscribe": "orders", "startingTimestamp": 5000, "startingOffsetsByTimestampStrategy": "LATEST"},
        all_of("orders", 0, 50, 100),
    ),
    "committed transactions": ({"subscribe": "marked"}, all_of("marked", 0, 10) + all_of("marked", 0, 22, 32)),
    "all transactions": (
        {"subscribe": "marked", "isolationLevel": "read_uncommitted"},
        all_of("marked", 0, 10) + all_of("marked", 0, 11, 21) + all_of("marked", 0, 22, 42),
    ),
    "Kafka's name for isolation": (
        {"subscribe": "marked", "kafka.isolation.level": "read_uncommitted", "endingOffsets": json_of(marked={0: 12})},
        all_of("marked", 0, 10) + all_of("marked", 0, 11, 12),
    ),
    "options without meaning": (
        {
            "assign": '{"orders":[1]}', "groupIdPrefix": "g", "kafkaConsumer.pollTimeoutMs": "1",
            "fetchOffset.numRetries": "x", "fetchOffset.retryIntervalMs": "9", "maxOffsetsPerTrigger": "5",
        },
        EVERYTHING["orders"][100:],
    ),
    "an id of the topic": (
        {"assign": '{"orders":[1]}', "topicIds": json.dumps({"orders": str(ORDERS)})}, EVERYTHING["orders"][100:],
    ),
}  # fmt: skip


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no topics": ({}, "exactly one of subscribe, subscribePattern, assign"),
    "two selections": ({**_ORDERS, "assign": '{"orders":[1]}'}, "exactly one of subscribe, subscribePattern, assign"),
    "no topic of this name": ({"subscribe": "orders,nope"}, "there is no topic 'nope' in the bucket"),
    "no such partition": ({"assign": '{"orders":[1,7]}'}, "topic 'orders' has no partition 7 in the bucket, only 0"),
    "assign": ({"assign": "orders"}, "the option assign is 'orders'"),
    "subscribe": ({"subscribe": "a/b"}, "the option subscribe has 'a/b'"),
    "subscribePattern": ({"subscribePattern": "a("}, "the option subscribePattern is 'a('"),
    "startingOffsets": ({**_ORDERS, "startingOffsets": "first"}, "the option startingOffsets is 'first'"),
    "latest": ({**_ORDERS, "startingOffsets": "latest"}, "the option startingOffsets is latest"),
    "endingOffsets": ({**_ORDERS, "endingOffsets": "earliest"}, "the option endingOffsets is earliest"),
    "partitions left out": ({**_ORDERS, "startingOffsets": '{"orders":{"0":3}}'}, "leaves out orders-1"),
    "partitions too many": (
        {**_ORDERS, "endingOffsets": '{"orders":{"0":3,"1":3,"2":3}}'}, "the option endingOffsets names orders-2",
    ),
    "startingTimestamp": ({**_ORDERS, "startingTimestamp": "2026-01-01"}, "the option startingTimestamp is '2026-"),
    "endingTimestamp": ({**_ORDERS, "endingTimestamp": "-1"}, "the option endingTimestamp is '-1'"),
    "a time without records": ({**_ORDERS, "startingTimestamp": 5000}, "orders-1 has no record of 5000 ms or later"),
    "startingOffsetsByTimestamp": (
        {**_ORDERS, "startingOffsetsByTimestamp": "{"}, "the option startingOffsetsByTimestamp is '{'",
    ),
    "endingOffsetsByTimestamp": (
        {**_ORDERS, "endingOffsetsByTimestamp": '{"orders":{"0":1}}'}, "endingOffsetsByTimestamp leaves out orders-1",
    ),
    "startingOffsetsByTimestampStrategy": (
        {**_ORDERS, "startingOffsetsByTimestampStrategy": "earliest"},
        "the option startingOffsetsByTimestampStrategy is 'earliest'",
    ),
    "a start after the end": (
        {**_ORDERS, "startingTimestamp": 4000, "endingOffsets": json_of(orders={0: 50, 1: 39})},
        "orders-1 would start at offset 40 and end before offset 39",
    ),
    "includeHeaders": ({**_ORDERS, "includeHeaders": "yes"}, "the option includeHeaders is 'yes'"),
    "columns": ({**_ORDERS, "columns": "offset,ofset"}, "the option columns is 'offset,ofset'"),
    "filterPushdown": ({**_ORDERS, "filterPushdown": "on"}, "the option filterPushdown is 'on'"),
    "failOnDataLoss": ({**_ORDERS, "failOnDataLoss": "0"}, "the option failOnDataLoss is '0'"),
    "minPartitions": ({**_ORDERS, "minPartitions": "0"}, "the option minPartitions is '0'"),
    "maxRecordsPerPartition": ({**_ORDERS, "maxRecordsPerPartition": "many"}, "maxRecordsPerPartition is 'many'"),
    "maxSplitBytes": ({**_ORDERS, "maxSplitBytes": "64 megs"}, "the option maxSplitBytes is '64 megs'"),
    "isolationLevel": ({**_ORDERS, "isolationLevel": "snapshot"}, "the option isolationLevel is 'snapshot'"),
    "two isolations": (
        {**_ORDERS, "isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
        "isolationLevel is read_committed, but kafka.isolation.level is read_uncommitted",
    ),
    "topicIds": ({**_ORDERS, "topicIds": '{"orders":"x"}'}, "the option topicIds:"),
    "an id that no topic has": ({**_ORDERS, "topicIds": json.dumps({"orders": str(PAYMENTS)})}, str(PAYMENTS)),
    "a broker without address": ({**_ORDERS, "kafka.client.id": "x"}, "the option kafka.bootstrap.servers is missing"),
    "a name that does not exist": ({**_ORDERS, "startingOffset": "earliest"}, "did you mean startingOffsets"),
    "another source's": ({**_ORDERS, "kafka.group.protocol": "x", "path": "/x"}, "the option path is not known"),
    "settings": ({**_ORDERS, "settings": "nowhere.properties"}, "the settings file nowhere.properties is neither"),
    "a start beyond the log": (
        {**_ORDERS, "startingOffsets": json_of(orders={0: 101, 1: 0})},
        "the options start orders-0 at offset 101, but its log ends before offset 100",
    ),
    "an end beyond the log": (
        {**_ORDERS, "endingOffsets": json_of(orders={0: 101, 1: 10})},
        "offsets 100 to 100 of orders-0 are not available",
    ),
}  # fmt: skip
"""Invalid options and part of their error message."""
