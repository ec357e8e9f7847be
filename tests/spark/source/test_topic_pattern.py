from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import ConfigError
from tieredstore.spark.source.option_values import java_pattern

TOPICS = ["orders", "orders.v2", "Orders-EU", "pay_9", "q+", "a.b", "a*b", "ordersorders", "z", "\\x"]


def matching(pattern: str) -> list[str]:
    translated = re.compile(java_pattern("subscribePattern", pattern))
    return [topic for topic in TOPICS if translated.fullmatch(topic)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders.v2", "ordersorders"]),
        ("(?i)orders-.*", ["Orders-EU"]),
        (r"\Qa.b\E", ["a.b"]),
        (r"a\Q*b", ["a*b"]),
        (r"\Qq+\E|z", ["q+", "z"]),
        (r"\p{Lower}+", ["orders", "ordersorders", "z"]),
        (r"\p{Lu}[\p{L}-]+", ["Orders-EU"]),
        (r"\pL+_\p{Nd}", ["pay_9"]),
        (r"[\p{Alpha}\p{Punct}]+", ["orders", "Orders-EU", "a.b", "ordersorders", "z"]),
        (r"(?<name>orders)\k<name>", ["ordersorders"]),
        (r"(?<!x)orders(?<=s)", ["orders"]),
        (r"orders\z", ["orders"]),
        (r"^orders\Z$", ["orders"]),
        (r"\\x", ["\\x"]),
        (r"o(?>rder)s", ["orders"]),
        (r"(orders)\1", ["ordersorders"]),
        (r"[a-y]++", ["orders", "ordersorders"]),
        (r"\w+\.v\d", ["orders.v2"]),
    ],
)
def test_a_pattern_finds_what_java_finds(pattern: str, expected: list[str]) -> None:
    assert matching(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "is empty"),
        ("orders(", r"is 'orders\(', which cannot be read: missing \)"),
        ("*", "nothing to repeat"),
        ("[a-z&&[^b]]+", "it has a Java set with &&"),
        ("[[a-z]x]", "it has nested sets"),
        (r"\p{Thai}+", r"\\p\{Thai\} is not supported"),
        ("a{99999999999999999999}", "cannot be read"),
        (r"\h", "bad escape"),
        (r"\0141", r"\\0 is a character in Java"),
        (r"(a)\141", r"\\141 is a character in Java"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused_in_one_sentence(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        java_pattern("subscribePattern", pattern)
    assert str(caught.value).startswith("the option subscribePattern ")


def test_a_long_pattern_is_cut_in_the_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        java_pattern("subscribePattern", "(" * 5000)
    assert len(str(caught.value)) < 300


@given(st.text(alphabet="ab.[]()|*+?\\QEpLk<>{}&^$-z", max_size=12))
def test_any_text_is_a_pattern_or_one_sentence(text: str) -> None:
    with contextlib.suppress(ConfigError):
        re.compile(java_pattern("subscribePattern", text))


@given(st.text(alphabet="abcXYZ019._-", min_size=1, max_size=12))
def test_a_quoted_name_matches_itself_alone(name: str) -> None:
    translated = re.compile(java_pattern("subscribePattern", rf"\Q{name}\E"))
    assert translated.fullmatch(name)
    assert not translated.fullmatch(name + "a")
