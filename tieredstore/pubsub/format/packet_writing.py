"""The bytes of MemQ's packets: requests and responses as they are sent."""

from __future__ import annotations

import struct
from typing import Final

from tieredstore.limits import MAX_INT32
from tieredstore.pubsub.format.packets import (
    READ_BROKERS_FROM,
    SLOTS_FROM,
    VERSIONS,
    BrokerAddress,
    Code,
    MetadataRequest,
    PacketType,
    ReadAnswer,
    Request,
    Response,
    TopicMetadata,
    WriteAnswer,
    WriteRequest,
)

MOST_READ_BYTES: Final = MAX_INT32 - 64
"""Bytes of an object that one answer holds, whose own size is signed, of 32 bits."""

_MOST_ERROR: Final = 4000  # characters, of 4 bytes at most


def request_bytes(request: Request) -> bytes:
    """The packet of a request, its size included."""
    payload, version = request.payload, request.version
    if isinstance(payload, WriteRequest):
        kind = PacketType.WRITE
        body = bytes([payload.no_acks]) + _text(payload.topic) + struct.pack(">I", payload.crc)
        if version >= SLOTS_FROM:
            body += _text(payload.producer_id) + struct.pack(">h", len(payload.connections))
            body += b"".join(_text(ip) + struct.pack(">i", slots) for ip, slots in payload.connections)
        body += struct.pack(">i", len(payload.data)) + bytes(payload.data)
    elif isinstance(payload, MetadataRequest):
        kind, body = PacketType.METADATA, b"".join(map(_text, payload.topics))
    else:
        kind = PacketType.READ
        body = _text(payload.topic) + _text(payload.notification)
        body += struct.pack(">?ii", payload.header_only, payload.offset, payload.size)
    return _sized(struct.pack(">hqb", version, request.request_id, kind.value) + body)


def response_bytes(response: Response) -> bytes:
    """The packet of a response, its size included; an error's text is cut to what a packet holds."""
    head = struct.pack(">hqbh", response.version, response.request_id, response.kind.value, response.code.value)
    return _sized(head + _text(response.error[:_MOST_ERROR]) + _payload_bytes(response))


def write_answered(version: int, request_id: int) -> bytes:
    """The packet that answers a write well, without slots and without a version: clients stay with taking brokers in
    turn."""
    start, rest = _WRITE_ANSWERED[version]
    return start + request_id.to_bytes(8, "big", signed=True) + rest


def read_response_head(version: int, request_id: int, size: int) -> bytes:
    """What precedes ``size`` bytes that answer a READ: for those that are sent as they come out of a store."""
    head = struct.pack(">hqbh", version, request_id, PacketType.READ.value, Code.OK.value) + _text("")
    return struct.pack(">i", len(head) + 4 + size) + head + struct.pack(">i", size)


def error_response(request_id: int, version: int, kind: PacketType, code: Code, why: str) -> bytes:
    """The packet that tells of a failure, which has no payload."""
    return response_bytes(Response(version, request_id, kind, code, why))


def _payload_bytes(response: Response) -> bytes:
    payload = response.payload
    if payload is None:
        return b""
    if isinstance(payload, WriteAnswer):
        if response.version < SLOTS_FROM:
            return b""
        numbers = struct.pack(">iih", payload.slots_to_move, payload.slots_owned, payload.server_version)
        return _text(payload.move_to) + numbers
    if isinstance(payload, ReadAnswer):
        return struct.pack(">i", len(payload.data)) + payload.data
    return b"".join(_topic_bytes(topic, response.version) for topic in payload.topics)


def _topic_bytes(topic: TopicMetadata, version: int) -> bytes:
    parts = [_text(topic.topic), _brokers(topic.write_brokers), _text(topic.handler)]
    parts.append(struct.pack(">h", len(topic.properties)))
    parts += [_text(name) + _text(value) for name, value in topic.properties]
    if version >= READ_BROKERS_FROM:
        parts.append(_brokers(topic.read_brokers))
    return b"".join(parts)


def _brokers(brokers: tuple[BrokerAddress, ...]) -> bytes:
    parts = [_text(broker.locality) + _text(broker.ip) + struct.pack(">h", broker.port) for broker in brokers]
    return struct.pack(">h", len(brokers)) + b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _sized(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet


def _around_its_id(version: int) -> tuple[bytes, bytes]:
    answer = response_bytes(Response(version, 0, PacketType.WRITE, Code.OK, payload=WriteAnswer()))
    return answer[:6], answer[14:]


_WRITE_ANSWERED: Final = {version: _around_its_id(version) for version in VERSIONS}
