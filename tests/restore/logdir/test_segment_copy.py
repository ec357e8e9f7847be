"""Whole batches from chunks that end anywhere, and batches damaged at any byte."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import GOLDEN
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.restore.logdir.segment_copy import whole_batches

LOG = (GOLDEN / "12-smallbatch" / "original" / "smallbatch-0" / f"{0:020d}.log").read_bytes()[:100_000]


def whole(log: bytes) -> bytes:
    """Return the log up to its last whole batch."""
    end = 0
    while end + 12 <= len(log) and end + 12 + int.from_bytes(log[end + 8 : end + 12], "big") <= len(log):
        end += 12 + int.from_bytes(log[end + 8 : end + 12], "big")
    return log[:end]


SMALL = whole(LOG)


def chunks(log: bytes, cuts: list[int]) -> list[memoryview]:
    places = [0, *sorted(cut for cut in cuts if cut < len(log)), len(log)]
    return [memoryview(log)[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(st.integers(0, len(SMALL)), max_size=20))
def test_batches_come_whole_wherever_chunks_are_cut(cuts: list[int]) -> None:
    found = [(header, bytes(batch)) for header, batch in whole_batches(chunks(SMALL, cuts), len(SMALL))]
    assert [header for header, _ in found] == list(read_batch_headers(SMALL))
    assert b"".join(batch for _, batch in found) == SMALL


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_damage_or_in_what_no_checksum_covers() -> None:
    """No checksum covers the base offset and the leader epoch. Offsets must increase; epochs are rewritten anyway."""
    source, headers = random.Random(7), list(read_batch_headers(SMALL))
    for _ in range(300):
        at, bit = source.randrange(len(SMALL)), source.randrange(8)
        damaged = bytearray(SMALL)
        damaged[at] ^= 1 << bit
        batch = next(header for header in reversed(headers) if header.position <= at)
        is_covered = not (0 <= at - batch.position < 8 or 12 <= at - batch.position < 16)
        try:
            list(whole_batches(chunks(bytes(damaged), [at]), len(damaged)))
        except BatchCorruptError:
            continue
        assert not is_covered


@pytest.mark.parametrize("end", [0, 1, 11, 12, 61, -1])
def test_a_log_that_ends_inside_a_batch_is_refused(end: int) -> None:
    cut = SMALL + SMALL[:end] if end >= 0 else SMALL[:-1]
    if end == 0:
        assert list(whole_batches([memoryview(cut)], len(cut)))
        return
    with pytest.raises(BatchCorruptError):
        list(whole_batches([memoryview(cut)], len(cut)))
