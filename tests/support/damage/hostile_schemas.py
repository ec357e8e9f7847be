"""Hostile Avro schemas and messages, made to crash the process that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tieredstore.values import AvroSchema, ReferringSchema


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def number(value: int) -> bytes:
    """Encode an Avro long."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


READER = record("R", id="long")
GOOD = number(7)
"""Valid message of the schema ``READER``."""


def linked(nodes: int) -> bytes:
    """Return this many nested nodes of the schema ``LINKED``."""
    return number(7) + b"\x02" * (nodes - 1) + b"\x00"


LINKED = record("R", id="long", r=["null", record("N", next=["null", "N"])])
"""Schema of nested nodes (a byte ``02`` each). The reader requests none, but the decoder must skip them."""


def chain(links: int, last: Any, uses: int = 1) -> ReferringSchema:
    """Return records in separate schema texts, each of which refers ``uses`` times to the next."""

    def of(at: int) -> dict[str, str]:
        return {f"f{use}": f"T{at}" for use in range(uses)}

    texts = [record("T0", v=last), *(record(f"T{at}", **of(at - 1)) for at in range(1, links))]
    top = json.dumps(record("R", id="long", **of(links - 1)))
    return ReferringSchema(top, tuple(json.dumps(text) for text in texts))


def nested(levels: int, open_: str, close: str) -> str:
    return f'{{"type":"record","name":"R","fields":[{{"name":"id","type":{open_ * levels}"int"{close * levels}}}]}}'


def with_field(kind: Any) -> dict[str, Any]:
    return record("R", id="long", x=kind)


@dataclass(frozen=True)
class Hostile:
    """Hostile schema of a writer, and data that claims to be its message."""

    schema: AvroSchema | Callable[[], AvroSchema]
    data: bytes = GOOD

    def written_by(self) -> AvroSchema:
        return self.schema() if callable(self.schema) else self.schema


SCHEMAS: Mapping[str, Hostile] = {
    "two million nodes": Hostile(LINKED, linked(2_000_000)),
    "one node too deep": Hostile(LINKED, linked(65)),
    "itself, in six bytes": Hostile(with_field(record("S", s="S")), GOOD),
    "itself by an array": Hostile(with_field(record("S", s={"type": "array", "items": "S"})), GOOD + b"\x02" * 200_000),
    "itself by a map": Hostile(
        with_field(record("S", s={"type": "map", "values": "S"})), GOOD + b"\x02\x00" * 200_000
    ),
    "a chain of 5,000": Hostile(lambda: chain(5_000, "int"), GOOD + GOOD),
    "an array of nulls": Hostile(with_field({"type": "array", "items": "null"}), GOOD + number(2**40) + b"\0"),
    "an array of named nothing": Hostile(
        record("R", id="long", a=record("Z"), x={"type": "array", "items": "Z"}), GOOD + number(2**40) + b"\0"
    ),
    "an array of fixed nothing": Hostile(
        record("R", id="long", a={"type": "fixed", "name": "Z", "size": 0}, x={"type": "array", "items": "Z"}),
        GOOD + number(2**40) + b"\0",
    ),
    "nothing, 2^25 times": Hostile(lambda: chain(25, "null", 2), GOOD),
    "nothing, 2^20 times an item": Hostile(
        lambda: ReferringSchema(
            json.dumps(with_field({"type": "array", "items": record("I", n="int", f="T19")})),
            chain(20, "null", 2).references,
        ),
        GOOD + number(1000) + b"\x02" * 1000 + b"\0",
    ),
    "a block of another size": Hostile(
        record("R", id="long", x={"type": "array", "items": record("S", s=["null", "S"])}),
        GOOD + number(-1) + number(100) + b"\0" + b"\0",
    ),
    "a negative text": Hostile(with_field(["string", record("S", s=["null", "S"])]), GOOD + b"\0" + number(-5)),
    "a number without an end": Hostile(with_field(["long", record("S", s=["null", "S"])]), GOOD + b"\0" + b"\xff" * 99),
    "a branch that there is not": Hostile(with_field(["long", record("S", s=["null", "S"])]), GOOD + number(-1) + GOOD),
    "2,000 arrays within each other": Hostile(nested(2_000, '{"type":"array","items":', "}")),
    "400 arrays within each other": Hostile(nested(400, '{"type":"array","items":', "}")),
    "unions within unions": Hostile(nested(60, "[", "]")),
    "a type of Avro's own name": Hostile(with_field(record("union", n="null"))),
    "marks of the library": Hostile(
        json.dumps({**record("R", id="long"), "type": "map", "__fastavro_parsed": True, "__named_schemas": {"long": 5}})
    ),
    "a size below zero": Hostile(with_field({"type": "fixed", "name": "F", "size": -1})),
    "a size without an end": Hostile('{"type":"record","name":"R","fields":[{"name":"id","type":'
                                     '{"type":"fixed","name":"F","size":1e400}}]}'),
    "20,000 types": Hostile(lambda: record("R", **{f"f{at}": "int" for at in range(20_000)})),
}  # fmt: skip
"""Cases by name of the fault. No case's data can be read as a message of ``READER``."""

COLUMNS: Mapping[str, Hostile] = {
    "2^25 columns": Hostile(lambda: chain(25, "int", 2)),
    "itself": Hostile(LINKED),
    "a decimal of a thousand digits": Hostile(
        with_field({"type": "bytes", "logicalType": "decimal", "precision": 1000})
    ),
    "a decimal of no digits": Hostile(with_field({"type": "bytes", "logicalType": "decimal"})),
    "a fixed type of 2^40 bytes": Hostile(with_field({"type": "fixed", "name": "F", "size": 2**40})),
}
"""Schemas that cannot be converted to columns."""
