"""Flipped bits of stored objects: noticed, harmless, or undetectable in this format.

``DAMAGE`` is the table of docs/reference/format.md; each row is proven here by flipping bits of golden objects.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from tests.support.examples import examples
from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment, segments
from tests.support.golden.stored import manifest_of, metadata_of, original_indexes, settings_of
from tests.support.paths import REPOSITORY
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CorruptDataError, IndexNotRecordedError, UnknownKeyError, WrongKeyError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType
from tieredstore.remote import RemoteStorageManager

PLAIN, ZSTD, ENC = segments("07-txn")[0], segments("02-zstd-onechunk")[0], segments("07-zstd-enc-txn")[0]
ZSTD_CHUNKS, FIXED_ENC = segments("04-zstd-enc")[0], segments("03-enc")[0]
ERROR, SAME, OTHER = "error", "same bytes", "other bytes"


class Row(NamedTuple):
    """A row of the table: a place, its position in a golden segment, and the effect of flipping its bits."""

    place: str
    pattern: bytes
    plain: frozenset[str]
    zstd: frozenset[str]
    encrypted: frozenset[str]


def _row(place: str, pattern: bytes, plain: Iterable[str], zstd: Iterable[str], encrypted: Iterable[str]) -> Row:
    return Row(place, pattern, frozenset(plain), frozenset(zstd), frozenset(encrypted))


def _entry(name: bytes, field: bytes) -> bytes:
    position, size = (rb"(\d+)", rb"\d+") if field == b"position" else (rb"\d+", rb"(\d+)")
    return rb'"%s":\{"position":%s,"size":%s\}' % (name, position, size)


DAMAGE = [
    _row("version", rb'"version":("1")', [ERROR], [ERROR], [ERROR]),
    _row("chunkIndex.type", rb'"type":"(\w+)"', [ERROR], [ERROR], [ERROR]),
    _row("chunkIndex.originalChunkSize", rb'"originalChunkSize":(\d+)', [ERROR], [ERROR, SAME], [ERROR]),
    _row("chunkIndex.originalFileSize", rb'"originalFileSize":(\d+)', [ERROR], [ERROR], [ERROR]),
    _row("chunkIndex.transformedChunkSize", rb'"transformedChunkSize":(\d+)', [ERROR], [], []),
    _row("chunkIndex.finalTransformedChunkSize", rb'"finalTransformedChunkSize":(\d+)', [ERROR], [], []),
    _row("chunkIndex.transformedChunks", rb'"transformedChunks":"([^"]+)"', [], [ERROR], [ERROR, SAME]),
    _row("segmentIndexes.offset.position", _entry(b"offset", b"position"), [ERROR], [ERROR], [ERROR]),
    _row("segmentIndexes.offset.size", _entry(b"offset", b"size"), [ERROR], [ERROR], [ERROR]),
    _row("segmentIndexes.leaderEpoch.position", _entry(b"leaderEpoch", b"position"), [ERROR], [ERROR], [ERROR]),
    _row(
        "size of the last index",
        rb'"size":(\d+)\}(?:,"transaction":null)?\},"compression"',
        [ERROR, OTHER],
        [ERROR, OTHER],
        [ERROR],
    ),
    _row("segmentIndexes.transaction null", rb'"transaction":(null)', [], [ERROR], []),
    _row("compression", rb'"compression":(\w+)', [ERROR], [ERROR], [ERROR]),
    _row("encryption.dataKey", rb'"dataKey":"([^"]+)"', [], [], [ERROR]),
    _row("encryption.aad", rb'"aad":"([^"]+)"', [], [], [ERROR, SAME]),
    _row(
        "names of fields that locate or transform",
        rb'"(encryption|compression|transaction|aad|dataKey|size|chunkIndex)":',
        [ERROR],
        [ERROR],
        [ERROR],
    ),
    _row(
        "remoteLogSegmentMetadata, its content",
        rb'"remoteLogSegmentMetadata":\{(.+)\}\}',
        [SAME, ERROR],
        [SAME, ERROR],
        [SAME, ERROR],
    ),
]


OTHER_SEGMENT = segments("01-none")[1]
OTHER_METADATA = metadata_of(OTHER_SEGMENT)


def store_of(segment: GoldenSegment) -> MemoryObjectStore:
    store = MemoryObjectStore()
    for suffix in ("log", "indexes", "rsm-manifest"):
        store.put(f"{segment.main_path}.{suffix}", segment.stored(suffix).read_bytes())
    return store


class Damaged:
    """A golden segment whose objects are damaged, read, and repaired."""

    def __init__(self, segment: GoldenSegment) -> None:
        self.segment = segment
        self.metadata = metadata_of(segment)
        self.store = store_of(segment)
        # Cache only the last manifest, because opening a manifest takes an RSA operation. :meth:`outcome` evicts it.
        last_manifest = {"fetch.manifest.cache.size": "1", "fetch.indexes.cache.size": "0"}
        self.manager = RemoteStorageManager(settings_of(segment.case, last_manifest), store=self.store)
        other_key = self.manager.layout.key(OTHER_METADATA, Suffix.MANIFEST)
        self.store.put(other_key, OTHER_SEGMENT.stored("rsm-manifest").read_bytes())
        self.log = segment.original("log").read_bytes()
        self.indexes = original_indexes(segment)

    def flip(self, suffix: str, bit: int) -> str:
        """Return the outcome of reading everything with one bit of one object flipped."""
        key = f"{self.segment.main_path}.{suffix}"
        whole = self.store.get(key)
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        self.store.put(key, damaged)
        try:
            return self.outcome()
        finally:
            self.store.put(key, whole)

    def outcome(self) -> str:
        self.manager.fetch_manifest(OTHER_METADATA)  # evicts the previous manifest
        outcomes = {self._read(kind) for kind in IndexType} | {self._read(None)}
        return next(kind for kind in (OTHER, ERROR, SAME) if kind in outcomes)

    def _read(self, kind: IndexType | None) -> str:
        try:
            if kind is None:
                return SAME if self.manager.fetch_log_segment(self.metadata, 0).read() == self.log else OTHER
            return SAME if self.manager.fetch_index(self.metadata, kind).read() == self.indexes.get(kind) else OTHER
        except IndexNotRecordedError:
            return SAME if kind not in self.indexes else OTHER
        except (CorruptDataError, UnknownKeyError, WrongKeyError):
            return ERROR


@pytest.fixture(scope="module")
def damaged() -> dict[str, Damaged]:
    return {"plain": Damaged(PLAIN), "zstd": Damaged(ZSTD), "encrypted": Damaged(ENC)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "zstd", "encrypted"])
@pytest.mark.parametrize("row", DAMAGE, ids=lambda row: row.place)
def test_each_place_of_a_manifest_leads_to_what_the_table_says(
    damaged: dict[str, Damaged], row: Row, kind: str
) -> None:
    expected = getattr(row, kind)
    spans = [
        match.span(1) for match in re.finditer(row.pattern, damaged[kind].segment.stored("rsm-manifest").read_bytes())
    ]
    assert bool(spans) == bool(expected)
    bits = [bit for start, end in spans for bit in range(8 * start, 8 * end)]
    # RSA makes each try of an encrypted segment slow, so flip only a sample of the bits of long fields.
    sample = bits if len(bits) <= 500 else random.Random(0).sample(bits, examples(500))
    assert {damaged[kind].flip("rsm-manifest", bit) for bit in sample} == expected


@pytest.mark.slow
@pytest.mark.parametrize("segment", [ENC, FIXED_ENC, ZSTD_CHUNKS], ids=str)
def test_a_manifest_of_an_encrypted_segment_never_leads_to_other_bytes(segment: GoldenSegment) -> None:
    target = Damaged(segment)
    bits = range(8 * segment.stored("rsm-manifest").stat().st_size)
    assert {target.flip("rsm-manifest", bit) for bit in random.Random(1).sample(bits, examples(600))} == {ERROR, SAME}


ENCRYPTED = [segment for segment in ALL_SEGMENTS if manifest_of(segment).encryption is not None]
UNENCRYPTED = [segment for segment in ALL_SEGMENTS if manifest_of(segment).encryption is None]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["log", "indexes"])
@pytest.mark.parametrize("segment", ENCRYPTED, ids=str)
def test_every_flipped_bit_of_encrypted_data_is_an_error(segment: GoldenSegment, suffix: str) -> None:
    target = Damaged(segment)
    bits = range(8 * segment.stored(suffix).stat().st_size)
    for bit in [0, len(bits) - 1, *random.Random(2).sample(bits, examples(25))]:
        assert target.flip(suffix, bit) == ERROR


@pytest.mark.parametrize("segment", UNENCRYPTED[::3], ids=str)
def test_data_that_is_not_encrypted_gives_an_error_or_what_is_stored(segment: GoldenSegment) -> None:
    """The format does not protect unencrypted data: only Kafka's CRC of each batch does, for readers that check it."""
    target = Damaged(segment)
    compressed = manifest_of(segment).compression
    bits = range(8 * segment.stored("log").stat().st_size)
    outcomes = {target.flip("log", bit) for bit in random.Random(3).sample(bits, 10)}
    assert outcomes <= ({ERROR, OTHER} if compressed else {OTHER})


def test_the_documentation_has_each_row_that_is_not_always_an_error() -> None:
    document = (REPOSITORY / "docs" / "reference" / "format.md").read_text()
    for row in DAMAGE:
        cells = (row.plain, row.zstd, row.encrypted)
        if all(cell <= {ERROR} for cell in cells):
            continue
        written = [" or ".join(sorted(cell)) or "not there" for cell in cells]
        assert f"\n{row.place} | {' | '.join(written)}\n" in document
