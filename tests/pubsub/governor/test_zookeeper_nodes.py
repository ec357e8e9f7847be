"""What stands in ZooKeeper as others write it, and damaged: refused, or such that clients can be told of it."""

from __future__ import annotations

import json
import random

import pytest

from tieredstore.errors import CorruptData
from tieredstore.pubsub.format.packets import Code, MetadataAnswer, PacketType, Response, TopicMetadata, response_bytes
from tieredstore.pubsub.governor.zookeeper_nodes import load_of, parse_broker_node, parse_object

BROKER = {
    "brokerIP": "10.0.0.9", "brokerPort": 9092, "instanceType": "2xl", "locality": "us-east-1a",
    "assignedTopics": [{"topic": "clicks", "batchSizeMB": 4, "inputTrafficMB": "9.5", "assignmentTimestamp": 5}],
    "totalNetworkCapacity": 0, "brokerType": "READ_WRITE",
}  # fmt: skip
PATH = "/brokers/10.0.0.9"


def damaged(source: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(changed))
        match source.randrange(3):
            case 0:
                changed[at] = source.choice(b'0-9"{}[],:e.')
            case 1:
                del changed[at : at + source.randrange(1, 9)]
            case _:
                changed[at:at] = source.choice((b"99999999999", b'"', b"null", b"1e400", b"NaN", b"-", b"\\ud800"))
    return bytes(changed)


def damaged_nodes(count: int) -> int:
    source, survived = random.Random(7), 0
    for _ in range(count):
        try:
            node = parse_broker_node(damaged(source, json.dumps(BROKER).encode()), PATH)
            loads = [load_of(topic, name, PATH) for name, topic in node.assigned.items()]
        except CorruptData:
            continue
        survived += 1
        assert all(load.partitions(1) >= 1 for load in loads)
        again = parse_broker_node(node.body_with(node.assigned.values()), PATH)
        assert (again.seat, again.assigned.keys()) == (node.seat, node.assigned.keys())
        metadata = TopicMetadata("clicks", (node.seat.address,), "s3", (), (node.seat.address,))
        response_bytes(Response(5, 1, PacketType.METADATA, Code.OK, payload=MetadataAnswer((metadata,))))
    return survived


def test_a_damaged_node_is_refused_or_can_be_told_of() -> None:
    assert 50 < damaged_nodes(600) < 550


@pytest.mark.soak
def test_ten_thousand_damaged_nodes() -> None:
    assert 800 < damaged_nodes(10_000) < 9_200


@pytest.mark.parametrize(
    "fields",
    [
        {"brokerIP": None}, {"brokerIP": 4}, {"brokerIP": "x" * 40_000}, {"brokerIP": "\ud800"}, {"brokerPort": "9"},
        {"brokerPort": 40_000}, {"brokerPort": True}, {"locality": [1]}, {"assignedTopics": {"x": 1}},
        {"assignedTopics": [3]}, {"assignedTopics": [{"topic": 3}]},
    ],
)  # fmt: skip
def test_what_no_broker_wrote(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match=PATH):
        parse_broker_node(json.dumps({**BROKER, **fields}).encode(), PATH)


@pytest.mark.parametrize(
    "fields", [{"clusteringMultiplier": 0}, {"batchSizeBytes": -1}, {"inputTrafficMB": "x"}, {"inputTrafficMB": [1]},
               {"topic": "another"}],
)  # fmt: skip
def test_what_no_topic_is(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptData):
        load_of({"topic": "clicks", **fields}, "clicks", "/topics/clicks")


def test_noise_is_no_node() -> None:
    for raw in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(CorruptData):
            parse_object(raw, PATH)
