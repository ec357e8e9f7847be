"""Damaged batches and notifications are read correctly or refused. ``tests/asan`` runs the same batches in a build
that checks every memory access; ``make soak`` runs all ten thousand."""

from __future__ import annotations

import random

import pytest

from tests.support.pubsub.memq_batches import GOLDEN, check, mutations, rows_of
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.format.notifications import BatchFacts, Notification, RequestRuns, parse_notification


def damaged_batches(count: int) -> int:
    source = random.Random(0)
    return sum(check(mutation, source) for mutation in mutations(2, count))


def damaged_notifications(count: int) -> int:
    source = random.Random(1)
    facts = BatchFacts("0" * 32, 10, -5, 7, 1278, 99, (RequestRuns("7f000001", 1_700_000_000_000, (0, 1, 6, 6)),))
    originals = [
        (GOLDEN / "wire/notification-s3.json").read_bytes(),
        Notification("orders", 1234, 3, key="28/a/42_7_1_0_h", bucket="b", facts=facts).to_json(),
    ]
    survived = 0
    for _ in range(count):
        damaged = bytearray(source.choice(originals))
        for _ in range(source.choice((1, 1, 2, 5))):
            at = source.randrange(len(damaged))
            match source.randrange(4):
                case 0:
                    damaged[at] ^= 1 << source.randrange(8)
                case 1:
                    damaged[at] = source.choice(b'0-9"{}[],:e.')
                case 2:
                    del damaged[at : at + source.randrange(1, 5)]
                case _:
                    damaged[at:at] = source.choice((b"99999999999", b'"', b"null", b"[", b"-", b"\\ud800"))
        try:
            notification = parse_notification(bytes(damaged), "place")
        except NotificationCorruptError:
            continue
        survived += 1
        assert parse_notification(notification.to_json(), "again") == notification
    return survived


def test_a_damaged_batch_gives_an_error_or_records_that_hold_together() -> None:
    assert 30 < damaged_batches(700) < 600


@pytest.mark.soak
def test_ten_thousand_damaged_batches() -> None:
    assert 500 < damaged_batches(10_000) < 8_000


def test_a_damaged_notification_is_refused_or_is_one() -> None:
    assert 50 < damaged_notifications(1000) < 900


@pytest.mark.soak
def test_ten_thousand_damaged_notifications() -> None:
    assert 500 < damaged_notifications(10_000) < 9_000


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_an_error(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(200):
        with pytest.raises(MessageCorruptError):
            rows_of(source.randbytes(source.randrange(300)))
