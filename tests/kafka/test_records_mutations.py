"""Ten thousand damaged batches. ``tests/asan`` feeds the same ones to a kernel that checks every access."""

from __future__ import annotations

import random

import pytest

from tests.support.damage.record_mutations import check, contents, mutations
from tests.support.records.record_batches import rows
from tieredstore.errors import BatchCorruptError

pytestmark = pytest.mark.slow


def test_damage_gives_an_error_or_records_that_hold_together() -> None:
    source = random.Random(0)
    survived = sum(check(mutation, source) for mutation in mutations(2, 10_000))
    assert 100 < survived < 9_000


def test_damage_under_the_crc_gives_an_error_or_the_same_records() -> None:
    refused = 0
    for mutation in mutations(1, 3_000):
        if mutation.is_sealed:
            continue
        try:
            decoded = rows(mutation.damaged)
        except BatchCorruptError:
            refused += 1
            continue
        # If a mutation removes a whole batch, the decoder cannot notice it, but the other records must be right.
        expected = contents(rows(mutation.original))
        assert all(content in expected for content in contents(decoded))
    assert refused > 500


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_an_error(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(300):
        noise = source.randbytes(source.randrange(12, 300))
        with pytest.raises(BatchCorruptError):
            rows(noise)
