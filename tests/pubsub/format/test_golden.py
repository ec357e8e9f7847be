"""Objects written by MemQ's own client and broker (2.0.0). Records are equal, and so are the bytes without
compression.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.pubsub.memq_batches import GOLDEN, Row, build_batch, golden_batches, rows_of
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.decoder import BatchDecoder
from tieredstore.pubsub.format.messages import Compression, parse_message_header, seal_message

BATCHES = golden_batches()
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "expected.json").read_text())
HANDMADE = {path.name: path.read_bytes() for path in (GOLDEN / "handmade").iterdir()}


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def given(vector: str) -> list[Row]:
    """Return the producer's records, which must be read back unchanged."""
    return [
        {
            "key": decoded(record["key"]) or None,
            "value": decoded(record["value"]),
            "headers": [{"key": name, "value": decoded(value)} for name, value in record["headers"] or []] or None,
            "message_id": decoded(record["id"]),
            "timestamp": record["timestamp"],
        }
        for record in EXPECTED[vector]
        if record["accepted"]
    ]


@pytest.mark.parametrize("vector", BATCHES)
def test_its_records_are_those_that_were_given_to_memqs_producer(vector: str) -> None:
    rows = rows_of(BATCHES[vector])
    places = [(row.pop("message"), row.pop("record")) for row in rows]
    # Three concurrent producers (v05) have no order between them.
    assert sorted(map(repr, rows)) == sorted(map(repr, given(vector)))
    assert places == sorted(set(places))


@pytest.mark.parametrize("vector", BATCHES)
def test_written_again_it_has_equal_bytes_where_it_is_not_compressed(vector: str) -> None:
    batch, messages = BATCHES[vector], []
    rows = rows_of(batch)
    for place, message in BatchIndex(batch, vector, len(batch)).messages(batch):
        header = parse_message_header(message, place)
        body = BodyWriter(1 << 20)
        for row in rows:
            if row["message"] == place.number:
                headers = [(header["key"], header["value"]) for header in row["headers"] or []]
                assert body.take(row["value"], row["key"], headers, row["message_id"], row["timestamp"]) >= 0
        written = seal_message(body, body.count, header.request, header.compression)
        assert header.to_bytes() == message[: header.size]
        if header.compression is Compression.NONE:
            assert written == message
        else:
            assert len(written) < len(message)  # MemQ flushes at each record
        messages.append(written)
    assert rows_of(build_batch(messages)) == rows
    if "mixed" not in vector:
        assert build_batch(messages) == batch


def test_a_message_without_producer_and_an_empty_one_are_read() -> None:
    assert [row["value"] for row in rows_of(HANDMADE["h01-no-producer"])] == [b"v"]
    assert [(row["message"], row["value"]) for row in rows_of(HANDMADE["h04-empty-then-good"])] == [
        (1, b"v1"),
        (1, b"v2"),
    ]


def test_records_that_the_count_hides_are_refused_and_not_lost() -> None:
    with pytest.raises(MessageCorruptError, match="byte 96: bytes are left after the last of 1 records"):
        rows_of(HANDMADE["h10-count-too-small"])
    decoder = BatchDecoder(on_corrupt="skip")
    assert [row["value"] for row in rows_of(HANDMADE["h10-count-too-small"], decoder)] == [b"v1", b"v2"]
    (skipped,) = decoder.skipped
    assert "Message 0, byte 96" in skipped
