"""Byte compatibility with the plugin, both ways, on every golden segment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.segments import ALL_SEGMENTS, GoldenSegment, case_info, settings_text
from tests.support.golden.stored import files_of, manifest_of, metadata_of, original_indexes, settings_of
from tests.support.records.node_crypto import unwrap_with_node
from tieredstore.errors import IndexNotRecordedError
from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.manifest import SegmentManifest
from tieredstore.model import IndexType
from tieredstore.remote import RemoteStorageManager

pytestmark = pytest.mark.slow

every_segment = pytest.mark.parametrize("segment", ALL_SEGMENTS, ids=str)


@every_segment
def test_the_plugins_objects_give_the_brokers_files(segment: GoldenSegment) -> None:
    metadata = metadata_of(segment)
    with RemoteStorageManager(settings_of(segment.case)) as manager:
        with manager.fetch_log_segment(metadata, 0) as stream:
            assert stream.read() == segment.original("log").read_bytes()
        fetched = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(metadata).items()}
        assert fetched == original_indexes(segment)
        for kind in IndexType:
            if kind in fetched:
                assert manager.fetch_index(metadata, kind).read() == fetched[kind]
            else:
                with pytest.raises(IndexNotRecordedError, match="copied without a transaction index"):
                    manager.fetch_index(metadata, kind)


@given(st.sampled_from(ALL_SEGMENTS), st.data())
def test_any_range_of_the_plugins_objects_is_that_of_the_file(segment: GoldenSegment, data: st.DataObject) -> None:
    original = segment.original("log").read_bytes()
    start = data.draw(st.integers(0, len(original) - 1))
    end = data.draw(st.one_of(st.none(), st.integers(start, len(original) + 10)))
    step = data.draw(st.sampled_from([1000, 65536, 65536 * 3, 100_001, 1 << 20]))
    with (
        RemoteStorageManager(settings_of(segment.case)) as manager,
        manager.fetch_log_segment(metadata_of(segment), start, end) as stream,
    ):
        pieces = iter(lambda: stream.read(step), b"")
        assert b"".join(pieces) == original[start : None if end is None else end + 1]


@every_segment
def test_our_copy_reads_back_equal(segment: GoldenSegment, tmp_path: Path) -> None:
    with RemoteStorageManager(settings_of(segment.case, root=tmp_path)) as manager:
        manager.copy_log_segment_data(metadata_of(segment), files_of(segment))
        with manager.fetch_log_segment(metadata_of(segment), 0) as stream:
            assert stream.read() == segment.original("log").read_bytes()
        fetched = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(metadata_of(segment)).items()}
    assert fetched == original_indexes(segment)


class RecordedRandomness:
    """Returns the data key, AAD and IVs that the plugin drew for a segment, in our order of draws."""

    def __init__(self, segment: GoldenSegment) -> None:
        manifest = manifest_of(segment)
        self.data_key = b""
        self._left: Iterator[bytes] = iter(())
        if manifest.encryption is not None:
            with RemoteStorageManager(settings_of(segment.case)) as manager:
                assert manager.key_ring is not None
                self.data_key = manager.key_ring.unwrap(manifest.encryption.key_id, manifest.encryption.wrapped)
            self._left = iter([self.data_key, manifest.encryption.aad, *self._ivs(segment)])

    @staticmethod
    def _ivs(segment: GoldenSegment) -> Iterator[bytes]:
        manifest = manifest_of(segment)
        log, indexes = segment.stored("log").read_bytes(), segment.stored("indexes").read_bytes()
        for position in list(manifest.chunk_index.positions())[:-1]:
            yield log[position : position + 12]
        for kind in IndexType:
            entry = manifest.segment_indexes.entry(kind)
            if entry is not None and entry.size:
                yield indexes[entry.position : entry.position + 12]

    def __call__(self, count: int) -> bytes:
        drawn = next(self._left)
        assert len(drawn) == count
        return drawn

    def exhausted(self) -> bool:
        return next(self._left, None) is None


@every_segment
def test_with_the_plugins_randomness_we_write_the_plugins_bytes(segment: GoldenSegment, tmp_path: Path) -> None:
    manifest = manifest_of(segment)
    key_id = manifest.encryption.key_id if manifest.encryption else None
    settings = settings_of(segment.case, {"encryption.key.pair.id": key_id} if key_id else None, root=tmp_path)
    random = RecordedRandomness(segment)
    with RemoteStorageManager(settings, random_bytes=random) as manager:
        custom = manager.copy_log_segment_data(metadata_of(segment), files_of(segment))
    assert random.exhausted()
    for suffix in ("log", "indexes"):
        assert (tmp_path / f"{segment.main_path}.{suffix}").read_bytes() == segment.stored(suffix).read_bytes()
    ours = (tmp_path / f"{segment.main_path}.rsm-manifest").read_bytes()
    theirs = segment.stored("rsm-manifest").read_bytes()
    if key_id is not None:
        theirs = _with_our_data_key(theirs, ours)
        private = Path(settings_text(segment.case)[f"encryption.key.pairs.{key_id}.private.key.file"])
        encryption = SegmentManifest.from_bytes(ours).encryption
        assert encryption is not None
        assert unwrap_with_node(private, encryption.wrapped) == random.data_key
    assert ours == theirs
    _check_custom_metadata(segment, custom)


def _with_our_data_key(theirs: bytes, ours: bytes) -> bytes:
    """Replace the data key's ciphertext in the plugin's manifest by ours. RSA-OAEP is randomized, so only the length of
    the ciphertext must match.
    """
    pattern = re.compile(rb'("dataKey":"[^:"]+:)([^"]+)"')
    their_key, our_key = pattern.search(theirs), pattern.search(ours)
    assert their_key is not None
    assert our_key is not None
    assert len(their_key[2]) == len(our_key[2])
    assert their_key[2] != our_key[2]
    return theirs.replace(their_key[2], our_key[2])


def _check_custom_metadata(segment: GoldenSegment, custom: bytes | None) -> None:
    """Check custom metadata; the plugin returned it only if configured."""
    if segment.case != "10-prefix-masked-custommeta":
        assert custom is None
        return
    assert custom is not None
    objects = case_info(segment.case)["objects"]
    stored = sum(objects[f"{segment.main_path}.{suffix}"] for suffix in ("log", "indexes", "rsm-manifest"))
    prefix = "my/pre fix/p-"
    assert CustomMetadata.from_bytes(custom) == CustomMetadata(stored, prefix, segment.main_path.removeprefix(prefix))
