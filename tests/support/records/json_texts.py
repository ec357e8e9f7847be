"""Valid and nearly valid JSON texts, to compare the fast path for times with the slow one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from tieredstore.pipelines.filing.times import BadMessageError, EpochTime, JsonField

FIELD: Final = JsonField("a.t", ".")
"""Field that holds the time in each text."""

_GRAMMAR: Final = (
    b'{"a":{"t":', b"1700000000000", b'"t"', b"{", b"}", b"[", b"]", b":", b",", b" ", b"\n", b"0", b"01", b"-",
    b"1e3", b"1.5", b"9223372036854775808", b"999999999999999999", b"true", b"nul", b"NaN",
    b'"\\u0061"', b'"\\ud800"', b'"\\x"', b'"',
    b"\\", b"\x00", b"\x1f", b"\x7f", b"\x80", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf", b'"a":{"t":5}', b'"t":5', b"[" * 70, b"]" * 70, b"9" * 500,
)  # fmt: skip


def texts(seed: int, count: int) -> Iterator[bytes]:
    """Yield JSON texts, intact or changed in a few places."""
    source = random.Random(seed)
    for _ in range(count):
        text = bytearray(_whole(source))
        for _ in range(source.choice((0, 0, 1, 1, 2))):
            at, length = source.randrange(len(text) + 1), source.choice((0, 0, 1, 2, 9))
            text[at : at + length] = source.choice(_GRAMMAR)
        yield bytes(text)


def _whole(source: random.Random) -> bytes:
    time: Any = source.choice((1_700_000_000, 1_700_000_000_123, 10**15, 10**18, 0, 2**63 - 1, 5, "17", None, 1.5, -4))
    inner = {source.choice(("t", "t", "t", "t", "u", "tt")): time, "n": 'é\\"\u2028'[: source.randrange(5)]}
    outer = {"x" * source.randrange(20): [1.5e-3, True, None, {"é": 1}], "a": inner, "z": source.choice(("", "y" * 30))}
    return json.dumps(outer, ensure_ascii=source.random() < 0.5, indent=source.choice((None, 1))).encode()


def said(payloads: list[bytes | None], *, lead: int = 0) -> list[int | None]:
    """Return the fast path's answers for these payloads, in a column that is sliced after ``lead`` other values."""
    column = pa.array([b'{"a":{"t":1}}', None, b""][:lead] + payloads, pa.binary()).slice(lead)
    times = EpochTime(FIELD).quick(column)
    assert times is not None
    return times.to_pylist()


def decided(payload: bytes) -> int | None:
    """Return the time by the slow path; None for a bad message."""
    try:
        return EpochTime(FIELD)(payload)
    except BadMessageError:
        return None


def check(seed: int, count: int) -> int:
    """Compare the fast path with the slow one; return how many times the fast path knew the answer."""
    payloads = list(texts(seed, count))
    answers = said([*payloads], lead=seed % 4)
    for payload, answer in zip(payloads, answers, strict=True):
        # The answer 0 of the fast path means a bad message, for which ``decided`` returns None.
        assert answer is None or (answer or None) == decided(payload), payload
    return sum(answer is not None for answer in answers)
