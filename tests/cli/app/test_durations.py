"""Durations and start times: the same words for every option that takes one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.cli.cli_process import tieredstore
from tieredstore.api.positions import duration_of
from tieredstore.errors import ConfigError


def test_durations() -> None:
    assert [duration_of("--age", text) for text in ("90s", "30m", " 24h", "7d")] == [
        timedelta(seconds=90),
        timedelta(minutes=30),
        timedelta(days=1),
        timedelta(days=7),
    ]


@pytest.mark.parametrize("text", ["", "7", "7w", "-7d", "1.5h", "٣d", "yesterday"])
def test_what_is_none_names_its_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--age is '.*': give a duration, as 90s, 30m, 24h or 7d"):
        duration_of("--age", text)


def test_a_command_asks_for_them_in_the_same_words() -> None:
    done = tieredstore("gc", "--min-age", "soon", "--store", "./store")
    done.fails(2, "tieredstore: --min-age is 'soon': give a duration, as 90s, 30m, 24h or 7d")
