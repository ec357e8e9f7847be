"""Durations and start times: the same words for every option that takes one."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, store_of, tieredstore
from tieredstore.errors import ConfigError
from tieredstore.model import AtTime
from tieredstore.query.positions import GivenPlace, duration_of, duration_text, place_of, time_of


def test_durations() -> None:
    assert [duration_of("--age", text) for text in ("90s", "30m", " 24h", "7d")] == [
        timedelta(seconds=90),
        timedelta(minutes=30),
        timedelta(days=1),
        timedelta(days=7),
    ]


def test_a_duration_is_shown_by_its_largest_unit() -> None:
    for text in ("90s", "30m", "36h", "7d", "1s"):
        assert duration_text(duration_of("--age", text)) == text
    assert [duration_text(duration_of("--age", text)) for text in ("24h", "120s")] == ["1d", "2m"]


@pytest.mark.parametrize("text", ["", "7", "7w", "-7d", "1.5h", "٣d", "yesterday"])
def test_what_is_none_names_its_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--age is '.*': give a duration, as 90s, 30m, 24h or 7d"):
        duration_of("--age", text)


CLOCK = datetime(2026, 3, 5, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("now", "2026-03-05T14:30:00Z"),
        ("-1h", "2026-03-05T13:30:00Z"),
        ("today", "2026-03-05T00:00:00Z"),
        ("yesterday", "2026-03-04T00:00:00Z"),
        ("10:00", "2026-03-05T10:00:00Z"),
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        ("2026-01-31T08:00", "2026-01-31T08:00:00Z"),
        ("2026-01-31 08:00+02:00", "2026-01-31T06:00:00Z"),
        ("@1769846400000", "2026-01-31T08:00:00Z"),
        (date(2026, 1, 31), "2026-01-31T00:00:00Z"),
        (datetime(2026, 1, 31, 8, tzinfo=UTC), "2026-01-31T08:00:00Z"),
    ],
)
def test_one_syntax_of_time(given: GivenPlace, expected: str) -> None:
    """A text or day without a zone is UTC. Options that take only a time have the same syntax."""
    at = AtTime.of(datetime.fromisoformat(expected))
    assert place_of("start", given, clock=lambda: CLOCK) == at
    assert time_of("until", given, clock=lambda: CLOCK) == at


def test_a_number_is_an_offset_and_is_refused_where_only_a_time_makes_sense() -> None:
    assert place_of("start", 7) == place_of("start", "7") == 7
    for number in (7, "7"):
        with pytest.raises(ConfigError, match="until is 7, an offset: give a time, as yesterday, 2026"):
            time_of("until", number)
    naive = datetime.fromisoformat("2026-01-31T08:00")
    with pytest.raises(ConfigError, match="until is 2026-01-31T08:00:00, which has no time zone: add tzinfo=UTC"):
        time_of("until", naive)


@pytest.mark.parametrize("command", ["ls", "du", "verify", "rm single", "cat single"])
@pytest.mark.parametrize("text", ["10:00", "-1h", "yesterday", "2026-01-31T08:00"])
def test_without_a_zone_it_is_utc_and_the_output_says_so(command: str, text: str, tmp_path: Path) -> None:
    """stderr names the time once, with its zone; the JSON summary repeats it."""
    settings = store_of(tmp_path, ORIGINALS)
    done = tieredstore(*command.split(), "-c", settings, "--to", text, "--json")
    (time,) = re.findall(rf"tieredstore: --to {text} is (\S+ \d\d:\d\d:\d\d) UTC\n", done.stderr)
    if command not in ("ls", "cat single") and done.code == 0:
        assert done.rows[1]["to"][:19] == time.replace(" ", "T")


@pytest.mark.parametrize("text", ["@1769846400000", "2026-01-31T08:00Z", "2026-01-31T09:00+01:00"])
def test_a_time_with_its_zone_is_not_named_again(text: str, tmp_path: Path) -> None:
    done = tieredstore("du", "-c", store_of(tmp_path, ORIGINALS), "--to", text, "--json").clean()
    assert (done.rows[1]["from"], done.rows[1]["to"]) == (None, "2026-01-31T08:00:00.000Z")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("gc", "--min-age"), ("doctor --fix", "--min-age"), ("verify", "--recheck-after"),
        ("pipeline run backup.properties", "--drain"), ("pubsub verify orders", "--settle"),
    ],
)  # fmt: skip
def test_commands_ask_for_them_in_the_same_words(command: str, option: str) -> None:
    """No option is in seconds in one place and in milliseconds or days in another."""
    store = [] if command.startswith("pipeline") else ["--store", "./store"]
    done = tieredstore(*command.split(), option, "30", *store)
    done.fails(2, f"tieredstore: {option} is '30': give a duration, as 90s, 30m, 24h or 7d")
