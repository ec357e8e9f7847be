r"""``cat --format``: kcat's letters and escapes, and nothing ignored silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.cli.records.record_output import parse_format
from tieredstore.cli.records.row_output import bytes_in_terminal
from tieredstore.errors import ConfigError

RECORD: dict[str, Any] = {
    "topic": "orders",
    "partition": 3,
    "offset": 12,
    "timestamp": 1767225600123,
    "key": b"k\xff",
    "value": "é\n".encode(),
    "headers": [
        {"key": "trace", "value": b"1,2"},
        {"key": "none", "value": None},
        {"key": "empty", "value": b""},
    ],
}
NULLS = {**RECORD, "key": None, "value": None, "headers": None}

# Output of kcat 1.7 for these two records.
LETTERS = {
    "%t": (b"orders", b"orders"),
    "%p": (b"3", b"3"),
    "%o": (b"12", b"12"),
    "%T": (b"1767225600123", b"1767225600123"),
    "%k": (b"k\xff", b""),
    "%K": (b"2", b"-1"),
    "%s": ("é\n".encode(), b""),
    "%S": (b"3", b"-1"),
    "%R": (b"\0\0\0\x03", b"\xff\xff\xff\xff"),
    "%h": (b"trace=1,2,none=NULL,empty=", b""),
    "%%": (b"%", b"%"),
}
ESCAPES = {
    r"\n": b"\n",
    r"\r": b"\r",
    r"\t": b"\t",
    r"\0": b"\0",
    r"\x41": b"A",
    r"\xfF": b"\xff",
    r"\x7|": b"\x07|",
    r"\\": b"\\",
    r"\"": b'"',
    r"\%": b"%",
}
COLUMNS = {
    "k": "key",
    "K": "key",
    "s": "value",
    "S": "value",
    "R": "value",
    "h": "headers",
    "o": "offset",
    "T": "timestamp",
}

plain = st.text(st.characters(exclude_characters="%\\", exclude_categories=["Cs"]), min_size=1, max_size=5)
tokens = st.lists(st.one_of(st.sampled_from([*LETTERS, *ESCAPES]), plain), max_size=12)


@given(tokens)
def test_a_format_is_what_its_tokens_are(parts: list[str]) -> None:
    parsed = parse_format("".join(parts))
    for place, record in enumerate((RECORD, NULLS)):
        known = {**{token: written[place] for token, written in LETTERS.items()}, **ESCAPES}
        assert parsed.bytes_of(record) == b"".join(known.get(part, part.encode()) for part in parts)
    read = {COLUMNS[part[1]] for part in parts if part in LETTERS and part[1] in COLUMNS}
    assert set(parsed.columns) == read


@given(st.text(st.sampled_from("%\\tpoTkKsShRn0x4aZé \n\udcff9"), max_size=14))
def test_any_text_is_a_format_or_one_error(text: str) -> None:
    try:
        parsed = parse_format(text)
    except ConfigError:
        return
    assert isinstance(parsed.bytes_of(RECORD), bytes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%q", "%q is unknown; letters are %s %S %R %k %K %h %t %p %o %T %%"),
        ("%", "it ends in a single %"),
        ("100%", "it ends in a single %"),
        ("% s", "% "),
        (r"\d", r"\d is unknown"),
        (r"\65", r"\6 is unknown"),
        (r"\x", r"\x is unknown"),
        (r"\xg", r"\x is unknown"),
    ],
)
def test_an_unknown_token_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_format(text)
    assert words in str(caught.value)


def test_what_the_shell_could_not_decode_stays_what_it_was() -> None:
    assert parse_format("\udcff%p").bytes_of(RECORD) == b"\xff3"
    assert parse_format("\\").bytes_of(RECORD) == b"\\"


@given(st.binary(max_size=40))
def test_a_terminal_is_given_nothing_to_obey(data: bytes) -> None:
    shown = bytes_in_terminal(data).decode()
    assert all(character.isprintable() or character in "\n\t" for character in shown)
    assert shown.count("\n") == data.count(b"\n")
    if data.isascii() and data.decode().isprintable():
        assert shown.encode() == data
