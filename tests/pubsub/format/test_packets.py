"""Packets as MemQ's classes serialize them, round trips of our packets in each version, and damaged packets."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from zlib import crc32

import pytest

from tests.support.damage.damaged_packets import damaged_packet
from tests.support.pubsub.memq_batches import GOLDEN
from tieredstore.pubsub.errors import PacketCorruptError
from tieredstore.pubsub.format.packets import (
    MAX_PACKET_BYTES,
    BrokerAddress,
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    ReadAnswer,
    ReadRequest,
    Request,
    Response,
    TopicMetadata,
    WriteAnswer,
    WriteRequest,
    parse_request,
    parse_response,
    read_response_head,
    request_bytes,
    response_bytes,
    view_request,
)

BROKER = BrokerAddress("us-east-1a", "10.0.0.1", 9092)
DATA = b"a payload of thirty-one bytes.."
WRITE = WriteRequest(
    "orders", crc32(DATA), DATA, False, "0b5f2a4e-0000-4000-8000-000000000001", (("10.0.0.1", 3), ("10.0.0.2", 0))
)
ORDERS = TopicMetadata("orders", (BROKER,), "s3v2", (("bucket", "logs"),), (BROKER,))
METADATA = MetadataAnswer((ORDERS,))
GOLDEN_REQUESTS = {
    "write-request-v5": Request(5, 42, WRITE),
    "metadata-request-v5": Request(5, 1, MetadataRequest(("orders",))),
}
GOLDEN_RESPONSES = {
    "write-response-ok-v5": Response(5, 42, PacketType.WRITE, Code.OK, payload=WriteAnswer()),
    "metadata-response-v5": Response(5, 1, PacketType.METADATA, Code.OK, payload=METADATA),
}


def golden(name: str) -> bytes:
    return (GOLDEN / "wire" / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", GOLDEN_REQUESTS)
def test_memqs_requests(name: str) -> None:
    assert parse_request(golden(name)) == GOLDEN_REQUESTS[name]
    assert request_bytes(GOLDEN_REQUESTS[name]) == golden(name)


@pytest.mark.parametrize("name", GOLDEN_RESPONSES)
def test_memqs_responses(name: str) -> None:
    assert parse_response(golden(name)) == GOLDEN_RESPONSES[name]
    assert response_bytes(GOLDEN_RESPONSES[name]) == golden(name)


def head(version: int, request_id: int, kind: int, payload: bytes) -> bytes:
    """Build a packet from the fields in MemQ's table."""
    fields = version.to_bytes(2, "big") + request_id.to_bytes(8, "big", signed=True) + bytes([kind]) + payload
    return len(fields).to_bytes(4, "big") + fields


def text(words: str) -> bytes:
    return len(words.encode()).to_bytes(2, "big") + words.encode()


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_each_versions_requests_are_laid_out_as_memqs(version: int) -> None:
    slots = text(WRITE.producer_id) + b"\0\2" + text("10.0.0.1") + b"\0\0\0\3" + text("10.0.0.2") + bytes(4)
    data = len(DATA).to_bytes(4, "big") + DATA
    crc = crc32(DATA).to_bytes(4, "big")
    write = b"\0" + text("orders") + crc + (slots if version >= 4 else b"") + data
    read = text("orders") + text('{"x":1}') + b"\1" + (4).to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True)
    for kind, payload, request in (
        (0, write, WRITE),
        (1, text("a") + text("b"), MetadataRequest(("a", "b"))),
        (1, b"", MetadataRequest()),
        (2, read, ReadRequest("orders", '{"x":1}', True, 4, -1)),
    ):
        packet = head(version, -7, kind, payload)
        assert request_bytes(Request(version, -7, request)) == packet
        assert request_bytes(parse_request(packet)) == packet


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_each_versions_responses_are_laid_out_as_memqs(version: int) -> None:
    address = text("us-east-1a") + text("10.0.0.1") + (9092).to_bytes(2, "big")
    topic = text("orders") + b"\0\1" + address + text("s3v2") + b"\0\1" + text("bucket") + text("logs")
    owned = text("b") + (1).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\0\5"
    ok, full = (200).to_bytes(2, "big") + text(""), (503).to_bytes(2, "big") + text("full")
    for kind, number, payload, code, rest in (
        (PacketType.WRITE, 0, WriteAnswer("b", 1, 2, 5), ok, owned if version >= 4 else b""),
        (PacketType.METADATA, 1, METADATA, ok, topic + (b"\0\1" + address if version >= 3 else b"")),
        (PacketType.READ, 2, ReadAnswer(b"xyz"), ok, b"\0\0\0\3xyz"),
        (PacketType.WRITE, 0, None, full, b""),
    ):
        error = "" if code is ok else "full"
        response = Response(version, 9, kind, Code.OK if code is ok else Code.SERVICE_UNAVAILABLE, error, payload)
        packet = head(version, 9, number, code + rest)
        assert response_bytes(response) == packet
        assert response_bytes(parse_response(packet)) == packet


@pytest.mark.parametrize("version", [2, 5])
def test_metadata_tell_of_any_number_of_topics(version: int) -> None:
    others = TopicMetadata("b", (), "filesystem", (("x", ""), ("y", "1")))
    for topics in ((), (others,), (others, TopicMetadata("a", (BROKER,), "s3v2", ()), others)):
        answer = Response(version, 2, PacketType.METADATA, Code.OK, payload=MetadataAnswer(topics))
        # If there are no topics, the payload is empty.
        assert parse_response(response_bytes(answer)).payload == (MetadataAnswer(topics) if topics else None)


def test_an_answer_with_an_object_may_be_larger_than_a_request() -> None:
    data = bytes(MAX_PACKET_BYTES + 1)
    packet = read_response_head(5, 3, len(data)) + data
    assert parse_response(packet) == Response(5, 3, PacketType.READ, Code.OK, payload=ReadAnswer(data))


def test_an_older_brokers_ack_leaves_the_server_version_out() -> None:
    packet = golden("write-response-ok-v5")[:-2]
    assert parse_response((len(packet) - 4).to_bytes(4, "big") + packet[4:]).payload == WriteAnswer()


@pytest.mark.parametrize(
    ("packet", "sentence"),
    [
        (b"", "only 0 bytes follow"),
        (b"\0\0\0\1", "says that 1 bytes follow, but 0 bytes follow"),
        ((MAX_PACKET_BYTES + 1).to_bytes(4, "big") + bytes(MAX_PACKET_BYTES + 1), "at most 4194304 are allowed"),
        (b"\0\0\0\x0b\0\6" + bytes(9), r"version \(6\)"),
        (b"\0\0\0\x0b\0\5" + bytes(8) + b"\3", r"type \(3\)"),
        (b"\0\0\0\x0d\0\5" + bytes(8) + b"\1\xff\xff", "a field of -1 bytes at byte 17"),
        (b"\0\0\0\x0e\0\5" + bytes(8) + b"\1\0\1\xff", "invalid UTF-8"),
    ],
    ids=["empty", "size", "large", "version", "type", "length", "text"],
)
def test_bytes_that_are_no_request_are_refused(packet: bytes, sentence: str) -> None:
    with pytest.raises(PacketCorruptError, match=sentence):
        parse_request(packet)


def whole_packets() -> tuple[list[bytes], list[bytes]]:
    """Return requests and responses of every kind and version, including MemQ's own."""
    requests, responses = [golden(name) for name in GOLDEN_REQUESTS], [golden(name) for name in GOLDEN_RESPONSES]
    notification = (GOLDEN / "wire/notification-s3.json").read_text()
    for version in (2, 3, 4, 5):
        payloads = (WRITE, MetadataRequest(("orders", "b")), ReadRequest("orders", notification, False, 4, 9))
        requests += [request_bytes(Request(version, 42, payload)) for payload in payloads]
        for kind, payload in (
            (PacketType.WRITE, WriteAnswer("b", 1, 2, 5)),
            (PacketType.METADATA, METADATA),
            (PacketType.READ, ReadAnswer(DATA)),
        ):
            responses.append(response_bytes(Response(version, 42, kind, Code.OK, payload=payload)))
        responses.append(response_bytes(Response(version, 42, PacketType.WRITE, Code.REDIRECT, "elsewhere")))
    return requests, responses


def as_received(request: Request) -> Request:
    """Return the request without its producer and slots, which a broker does not parse."""
    if not isinstance(request.payload, WriteRequest):
        return request
    return replace(request, payload=replace(request.payload, producer_id="", connections=()))


def test_what_a_broker_is_told_of_a_request_is_what_it_says_and_its_data_are_not_copied() -> None:
    for packet in whole_packets()[0]:
        request = parse_request(packet)
        received = view_request(memoryview(packet))
        assert received == as_received(request)
        if isinstance(received.payload, WriteRequest):
            assert isinstance(received.payload.data, memoryview)
            assert received.payload.data.obj is packet


def damaged_packets(count: int) -> int:
    source, survived = random.Random(4), 0
    requests, responses = whole_packets()
    for _ in range(count):
        is_request = source.random() < 0.5
        packet = damaged_packet(source, source.choice(requests if is_request else responses), first=4, framed=0.9)
        try:
            if is_request:
                request = parse_request(packet)
                assert parse_request(request_bytes(request)) == request
                assert view_request(memoryview(packet)) == as_received(request)
            else:
                response = parse_response(packet)
                assert parse_response(response_bytes(response)).code is response.code
        except PacketCorruptError as refusal:
            if is_request:
                with pytest.raises(PacketCorruptError, match=re.escape(str(refusal))):
                    view_request(memoryview(packet))
            continue
        survived += 1
    return survived


def test_a_damaged_packet_is_refused_or_is_one() -> None:
    assert 50 < damaged_packets(1000) < 950


@pytest.mark.soak
def test_ten_thousand_damaged_packets() -> None:
    assert 500 < damaged_packets(10_000) < 9_500
