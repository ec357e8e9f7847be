"""The reader's settings: defaults, and settings that apply without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.settings_texts import BASE
from tieredstore.config import settings_from
from tieredstore.config.fetch import FetchSettings
from tieredstore.config.names import core_names
from tieredstore.config.properties import Effect, effect_of
from tieredstore.errors import ConfigError

AHEAD = "fetch.chunk.cache.prefetch.max.size"
MEMORY = {"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "1"}
DISK = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1", "fetch.chunk.cache.path": "/c"}


def fetch_of(**properties: str) -> FetchSettings:
    return settings_from({**BASE, **properties}).fetch


def test_without_settings_there_is_no_chunk_cache_but_read_ahead_of_16_mib() -> None:
    for settings in (fetch_of(), FetchSettings()):
        assert settings.chunk_cache is None
        assert settings.read_ahead_bytes == 16 * 1024 * 1024
        assert (settings.coalesce_max_bytes, settings.parallelism) == (16 * 1024 * 1024, 8)


@pytest.mark.parametrize("cache", [{}, MEMORY, DISK], ids=["none", "memory", "disk"])
@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("1", 1), ("33554432", 33554432)])
def test_read_ahead_is_as_said_with_and_without_a_cache(cache: dict[str, str], text: str, expected: int) -> None:
    assert fetch_of(**cache, **{AHEAD: text}).read_ahead_bytes == expected


@pytest.mark.parametrize("name", [AHEAD, "fetch.coalesce.max.bytes", "fetch.parallelism"])
def test_a_wrong_value_is_an_error_without_a_cache_too(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"settings: {name} is '-1'"):
        fetch_of(**{name: "-1"})


def test_the_readers_numbers_are_read() -> None:
    settings = fetch_of(**{"fetch.coalesce.max.bytes": "1048576", "fetch.parallelism": "3"})
    assert (settings.coalesce_max_bytes, settings.parallelism) == (1048576, 3)


@pytest.mark.parametrize("cache", [MEMORY, DISK], ids=["memory", "disk"])
def test_a_cache_holds_plaintext_unless_told_otherwise(cache: dict[str, str]) -> None:
    plain, encrypted = fetch_of(**cache), fetch_of(**cache, **{"fetch.chunk.cache.encrypted": "true"})
    assert plain.chunk_cache is not None
    assert encrypted.chunk_cache is not None
    assert (plain.chunk_cache.encrypted, encrypted.chunk_cache.encrypted) == (False, True)


def test_a_cache_keeps_its_other_settings_beside_those_of_the_reader() -> None:
    settings = fetch_of(**DISK, **{"fetch.indexes.cache.size": "7", "fetch.manifest.cache.size": "8", AHEAD: "9"})
    assert settings.chunk_cache is not None
    assert (settings.chunk_cache.kind, settings.chunk_cache.size, settings.chunk_cache.path) == ("disk", -1, Path("/c"))
    assert (settings.index_cache.size, settings.manifest_cache.size, settings.read_ahead_bytes) == (7, 8, 9)


def test_a_problem_of_each_part_is_counted_once() -> None:
    wrong = {"fetch.parallelism": "0", "fetch.indexes.cache.size": "x", "fetch.manifest.cache.size": "x", **MEMORY}
    with pytest.raises(ConfigError, match=r"4 settings are wrong:\n  fetch\.parallelism is '0'"):
        fetch_of(**wrong | {"fetch.chunk.cache.size": "x"})


def test_of_the_readers_settings_only_two_thread_pools_are_without_effect() -> None:
    idle = {name for name in core_names() if name.startswith("fetch.") and effect_of(name) is not Effect.IN_EFFECT}
    assert idle == {f"fetch.{cache}.cache.thread.pool.size" for cache in ("chunk", "indexes")}
