"""MemQ's packets between clients and brokers over TCP, protocol versions 2 to 5.

::

    request   4 size · 2 version · 8 client request id · 1 type · payload
    response  4 size · 2 version · 8 client request id · 1 type · 2 code · str error · payload

``size`` counts the bytes after it; ``str`` is 2 bytes of length and UTF-8. The classes document their payloads. Every
length is checked against the available bytes before use.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from tieredstore.kafka.batches import Buffer
from tieredstore.limits import MAX_INT16, MAX_INT32
from tieredstore.pubsub.errors import PacketCorruptError
from tieredstore.pubsub.format._packets import write_fields

MAX_PACKET_BYTES: Final = 4 << 20
"""Maximum size in bytes of a packet that a broker accepts, not counting the size field."""

VERSIONS: Final = range(2, 6)
SLOTS_FROM: Final = 4
READ_BROKERS_FROM: Final = 3

REQUEST_HEAD_SIZE: Final = 15
"""Bytes of a request before its payload."""

_HEAD: Final = struct.Struct(">hqb")


class PacketType(enum.Enum):
    """Operation of a packet."""

    WRITE = 0
    METADATA = 1
    READ = 2


_TYPES: Final[tuple[PacketType, ...]] = tuple(PacketType)  # the index of a type is its number


class Code(enum.Enum):
    """Status of a response."""

    OK = 200
    NO_DATA = 204
    REDIRECT = 302
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    NOT_FOUND = 404
    INTERNAL_ERROR = 500
    REQUEST_FAILED = 502
    SERVICE_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """``1 no-acks · str topic · 4 CRC-32 of data · [v4: str producer id · 2 n · n × {str ip, 4 slots}] · 4 length ·
    data``; ``data`` is one Message."""

    kind: ClassVar[PacketType] = PacketType.WRITE
    topic: str
    crc: int
    data: Buffer
    no_acks: bool = False
    producer_id: str = ""
    connections: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """``str topic``, repeated; none means all topics."""

    kind: ClassVar[PacketType] = PacketType.METADATA
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """``str topic · str notification · 1 header only · 4 offset · 4 size``; an offset and a size of −1 mean the whole
    object."""

    kind: ClassVar[PacketType] = PacketType.READ
    topic: str
    notification: str
    header_only: bool = False
    offset: int = -1
    size: int = -1


RequestPayload: TypeAlias = WriteRequest | MetadataRequest | ReadRequest


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request."""

    version: int
    request_id: int
    payload: RequestPayload


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """``str broker to move to · 4 slots to move · 4 slots owned · 2 server version`` from version 4 on; empty in
    earlier versions.

    ``server_version`` 0 means that the broker does not state its version. Some older brokers omit the field.
    """

    move_to: str = ""
    slots_to_move: int = 0
    slots_owned: int = 0
    server_version: int = 0


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """``str locality · str ip · 2 port``; the port is signed, so 32,767 at most."""

    locality: str
    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """``str topic · 2 n · n × broker · str handler · 2 n · n × {str name, str value} · [v3: 2 n · n × broker]``."""

    topic: str
    write_brokers: tuple[BrokerAddress, ...]
    handler: str
    properties: tuple[tuple[str, str], ...]
    read_brokers: tuple[BrokerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """Metadata of the requested topics."""

    topics: tuple[TopicMetadata, ...]


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """``4 length · bytes``."""

    data: bytes


ResponsePayload: TypeAlias = WriteAnswer | MetadataAnswer | ReadAnswer | None


@dataclass(frozen=True, slots=True)
class Response:
    """A broker's response; ``payload`` is None if absent, as in errors."""

    version: int
    request_id: int
    kind: PacketType
    code: Code
    error: str = ""
    payload: ResponsePayload = None


def parse_request(packet: Buffer) -> Request:
    """Parse a request that begins with its size. Raise PacketCorruptError if it is invalid."""
    fields = _Fields(packet)
    version, request_id, kind = fields.start()
    payload: RequestPayload
    if kind is PacketType.WRITE:
        payload = _parse_write(fields, version)
    elif kind is PacketType.METADATA:
        topics: list[str] = []
        while fields.left:
            topics.append(fields.text())
        payload = MetadataRequest(tuple(topics))
    else:
        payload = ReadRequest(fields.text(), fields.text(), fields.flag(), fields.take_signed(4), fields.take_signed(4))
    fields.end()
    return Request(version, request_id, payload)


def parse_response(packet: Buffer) -> Response:
    """Parse a response that begins with its size. Raise PacketCorruptError if it is invalid."""
    fields = _Fields(packet)
    version, request_id, kind = fields.start(MAX_INT32)  # a READ answer may exceed MAX_PACKET_BYTES
    code = fields.code()
    error = fields.text()
    payload: ResponsePayload = None
    if fields.left:
        if kind is PacketType.WRITE:
            payload = _parse_write_answer(fields)
        elif kind is PacketType.METADATA:
            topics: list[TopicMetadata] = []
            while fields.left:
                topics.append(_parse_topic(fields, version))
            payload = MetadataAnswer(tuple(topics))
        else:
            payload = ReadAnswer(fields.data())
    fields.end()
    return Response(version, request_id, kind, code, error, payload)


def request_head(packet: Buffer) -> tuple[int, int, PacketType]:
    """Return version, id and type from a request's first 15 bytes. Raise PacketCorruptError if they are invalid."""
    return _head(packet, 4)


def view_request(packet: memoryview) -> Request:
    """Parse a request for a broker, without copying the data of a write.

    The data of a write is a view of the packet. The producer id and its slots are not parsed.
    """
    fields = write_fields(packet) if len(packet) <= MAX_PACKET_BYTES else None
    if fields is None:
        return parse_request(packet)
    version, request_id, no_acks, topic, crc, start = fields
    try:
        return Request(version, request_id, WriteRequest(str(topic, "utf-8"), crc, packet[start:], no_acks))
    except UnicodeDecodeError:
        return parse_request(packet)


def _head(packet: Buffer, at: int) -> tuple[int, int, PacketType]:
    """Return the version, request id and type that begin at byte ``at`` of a packet."""
    numbers: tuple[int, int, int] = _HEAD.unpack_from(packet, at)
    version, request_id, kind = numbers
    if version not in VERSIONS or not 0 <= kind < len(_TYPES):
        raise PacketCorruptError(f"a packet has an unknown version ({version}) or type ({kind})")
    return version, request_id, _TYPES[kind]


def _parse_write(fields: _Fields, version: int) -> WriteRequest:
    no_acks, topic, crc = fields.flag(), fields.text(), fields.take_unsigned(4)
    producer_id, connections = "", []
    if version >= SLOTS_FROM:
        producer_id = fields.text()
        connections = [(fields.text(), fields.take_signed(4)) for _ in range(fields.count(6))]
    return WriteRequest(topic, crc, fields.data(), no_acks, producer_id, tuple(connections))


def _parse_write_answer(fields: _Fields) -> WriteAnswer:
    move_to, to_move, owned = fields.text(), fields.take_signed(4), fields.take_signed(4)
    return WriteAnswer(move_to, to_move, owned, fields.take_signed(2) if fields.left else 0)


def _parse_topic(fields: _Fields, version: int) -> TopicMetadata:
    topic, write_brokers, handler = fields.text(), fields.brokers(), fields.text()
    properties = tuple((fields.text(), fields.text()) for _ in range(fields.count(4)))
    read_brokers = fields.brokers() if version >= READ_BROKERS_FROM else ()
    return TopicMetadata(topic, write_brokers, handler, properties, read_brokers)


class _Fields:
    """Sequential reader of one packet's fields."""

    def __init__(self, packet: Buffer) -> None:
        self._view = memoryview(packet)
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes left to read."""
        return len(self._view) - self._at

    def start(self, most: int = MAX_PACKET_BYTES) -> tuple[int, int, PacketType]:
        """Read size, version, id and type."""
        size = self.take_signed(4)
        if size != self.left or size > most:
            raise PacketCorruptError(
                f"a packet says that {size} bytes follow, but {self.left} bytes follow; at most {most} are allowed"
            )
        return _head(self._take(_HEAD.size), 0)

    def take_signed(self, size: int) -> int:
        """Read a signed number of ``size`` bytes."""
        return int.from_bytes(self._take(size), "big", signed=True)

    def take_unsigned(self, size: int) -> int:
        """Read an unsigned number of ``size`` bytes."""
        return int.from_bytes(self._take(size), "big")

    def flag(self) -> bool:
        """Read a byte as a flag."""
        return self.take_unsigned(1) != 0

    def code(self) -> Code:
        """Read a response code."""
        number = self.take_signed(2)
        try:
            return Code(number)
        except ValueError:
            raise PacketCorruptError(f"a response has the unknown code {number}") from None

    def text(self) -> str:
        """Read a text that follows its length."""
        try:
            return str(self._take(self.take_signed(2)), "utf-8")
        except UnicodeDecodeError:
            raise PacketCorruptError(f"a packet has invalid UTF-8 before byte {self._at}") from None

    def data(self) -> bytes:
        """Read bytes that follow their length."""
        return bytes(self._take(self.take_signed(4)))

    def count(self, least: int) -> int:
        """Read the number of entries that follow, each of at least ``least`` bytes."""
        count = self.take_signed(2)
        if not 0 <= count * least <= self.left:
            raise PacketCorruptError(
                f"a packet says that a list of {count} entries begins at byte {self._at}, but only {self.left} bytes "
                "follow"
            )
        return count

    def brokers(self) -> tuple[BrokerAddress, ...]:
        """Read the number of brokers, and then the brokers."""
        return tuple(BrokerAddress(self.text(), self.text(), self._port()) for _ in range(self.count(6)))

    def _port(self) -> int:
        port = self.take_signed(2)
        if not 0 <= port <= MAX_INT16:
            raise PacketCorruptError(f"a packet names the port {port}, which is not from 0 to {MAX_INT16}")
        return port

    def end(self) -> None:
        """Raise PacketCorruptError if any bytes are left."""
        if self.left:
            raise PacketCorruptError(f"a packet has {self.left} bytes after its last field")

    def _take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise PacketCorruptError(
                f"a packet has a field of {size} bytes at byte {self._at}, but only {self.left} bytes follow"
            )
        self._at += size
        return self._view[self._at - size : self._at]


MOST_READ_BYTES: Final = MAX_INT32 - 64
"""Maximum bytes of an object in one answer. The answer's size must fit a signed 32-bit number."""

_MOST_ERROR: Final = 4000  # maximum length of an error text in characters, each at most 4 bytes


def request_bytes(request: Request) -> bytes:
    """Return the packet of a request, including the size field."""
    payload, version = request.payload, request.version
    if isinstance(payload, WriteRequest):
        body = bytes([payload.no_acks]) + _text(payload.topic) + struct.pack(">I", payload.crc)
        if version >= SLOTS_FROM:
            body += _text(payload.producer_id) + struct.pack(">h", len(payload.connections))
            body += b"".join(_text(ip) + struct.pack(">i", slots) for ip, slots in payload.connections)
        body += struct.pack(">i", len(payload.data)) + bytes(payload.data)
    elif isinstance(payload, MetadataRequest):
        body = b"".join(map(_text, payload.topics))
    else:
        body = _text(payload.topic) + _text(payload.notification)
        body += struct.pack(">?ii", payload.header_only, payload.offset, payload.size)
    return _with_size(struct.pack(">hqb", version, request.request_id, payload.kind.value) + body)


def response_bytes(response: Response) -> bytes:
    """Return the packet of a response, including the size field; a long error text is truncated."""
    head = struct.pack(">hqbh", response.version, response.request_id, response.kind.value, response.code.value)
    return _with_size(head + _text(response.error[:_MOST_ERROR]) + _payload_bytes(response))


def write_acknowledgement(version: int, request_id: int) -> bytes:
    """Return the packet that acknowledges a write. It omits the slots and the server version of protocol version 4, so
    that clients keep alternating between brokers.
    """
    start, rest = _ACKNOWLEDGEMENTS[version]
    return start + request_id.to_bytes(8, "big", signed=True) + rest


def read_response_head(version: int, request_id: int, size: int) -> bytes:
    """Return the start of a READ answer. The caller sends the ``size`` bytes of data after it, as they arrive from the
    store."""
    head = struct.pack(">hqbh", version, request_id, PacketType.READ.value, Code.OK.value) + _text("")
    return struct.pack(">i", len(head) + 4 + size) + head + struct.pack(">i", size)


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


def _with_size(packet: bytes) -> bytes:
    return struct.pack(">i", len(packet)) + packet


def _around_its_id(version: int) -> tuple[bytes, bytes]:
    answer = response_bytes(Response(version, 0, PacketType.WRITE, Code.OK, payload=WriteAnswer()))
    return answer[:6], answer[14:]


_ACKNOWLEDGEMENTS: Final = {version: _around_its_id(version) for version in VERSIONS}
