"""Durations, and since when: the same words for every option that takes one."""

from __future__ import annotations

import pytest

from tests.support.cli.cli_process import tieredstore
from tieredstore.cli.app.durations import parse_duration_ms, parse_since_ms
from tieredstore.errors import ConfigError


def test_durations_and_times() -> None:
    assert [parse_duration_ms("--age", text) for text in ("90s", "30m", " 24h", "7d")] == [
        90_000,
        1_800_000,
        86_400_000,
        604_800_000,
    ]
    assert parse_since_ms("--since", "90s", 100_000) == 10_000
    assert parse_since_ms("--since", "1970-01-01T00:00:01", 0) == 1000
    assert parse_since_ms("--since", "1970-01-01T01:00:01+01:00", 0) == 1000


@pytest.mark.parametrize("text", ["", "7", "7w", "-7d", "1.5h", "٣d", "yesterday"])
def test_what_is_none_names_its_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--age is '.*': give a duration, as 90s, 30m, 24h or 7d"):
        parse_duration_ms("--age", text)
    with pytest.raises(ConfigError, match=r"--since is '.*': give a duration, as .* or a time"):
        parse_since_ms("--since", text, 0)


@pytest.mark.parametrize(("command", "option"), [("gc", "--min-age"), ("verify", "--since")])
def test_the_commands_ask_for_them_in_the_same_words(command: str, option: str) -> None:
    done = tieredstore(command, option, "soon", "--store", "./store")
    done.fails(2, f"tieredstore: {option} is 'soon': give a duration, as 90s, 30m, 24h or 7d")
