"""Tests of the price file: the content of the shipped one, and the message for each mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from tieredstore.errors import ConfigError
from tieredstore.ops.cost.prices import PriceFile, Use, read_prices

EXAMPLE = REPOSITORY / "examples" / "prices.toml"


def document() -> dict[str, Any]:
    return tomllib.loads(EXAMPLE.read_text())


def read(folder: Path, content: object) -> PriceFile:
    path = folder / "prices.json"
    path.write_text(json.dumps(content))
    return read_prices(path)


def test_the_example_says_that_it_is_one() -> None:
    prices = read_prices(EXAMPLE)
    assert prices.title == "example of round figures (USD, as of 2024)"
    assert "not of your contract" in prices.assumptions[0]
    assert prices.kafka is not None
    assert (prices.store.storage_gib_month, prices.kafka.replication_factor) == (0.023, 3.0)


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    assert read(tmp_path, document()) == read_prices(EXAMPLE)


def test_what_is_left_out_is_not_made_up(tmp_path: Path) -> None:
    content = document()
    del content["kafka"], content["use"]
    prices = read(tmp_path, content)
    assert prices.kafka is None
    assert prices.use == Use(0.0, 0.0, 0.0)
    del content["store"]["read_1000"]
    with pytest.raises(ConfigError, match=r"store\.read_1000 is missing: 1,000 reading requests"):
        read(tmp_path, content)


def test_a_date_of_toml_is_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(EXAMPLE.read_text().replace('as_of = "2024"', "as_of = 2024-06-30"))
    assert read_prices(path).as_of == "2024-06-30"


@pytest.mark.parametrize(
    ("table", "name", "value", "sentence"),
    [
        ("store", "storage_gb_month", 1, "store.storage_gb_month is not known; did you mean store.storage_gib_month"),
        ("store", "read_gib", "0.1", "store.read_gib is '0.1', not a number"),
        ("store", "read_gib", True, "store.read_gib is True, not a number"),
        ("store", "read_gib", -0.1, "store.read_gib is -0.1; it must be from 0 to 1e+12"),
        ("store", "read_gib", float("nan"), "store.read_gib is nan; it must be from 0"),
        ("store", "read_gib", float("inf"), "store.read_gib is inf; it must be from 0"),
        ("store", "read_gib", 10**400, "store.read_gib is 1000"),
        ("kafka", "disk_fill", 0, "kafka.disk_fill is 0; it must be from 0.01 to 1"),
        ("kafka", "zones", 0.5, "kafka.zones is 0.5; it must be from 1 to 100"),
        ("use", "reads", 1, "use.reads is not known"),
        ("", "store", 3, "store is 3, not a table"),
        ("", "use", [], "use is [], not a table"),
        ("", "prices", {}, "prices is not known"),
        ("", "currency", "", "currency is '', not a text"),
        ("", "name", None, "name is missing: say whose prices"),
        ("", "name", "x" * 201, "not a text of at most 200 characters"),
        ("", "as_of", 2024, "as_of is 2024, not a text"),
        ("", "assumptions", "none", "assumptions is 'none', not a list of sentences"),
        ("", "assumptions", [1], "assumptions.0 is 1, not a text"),
    ],
)
def test_each_wrong_thing_is_told(table: str, name: str, value: object, sentence: str, tmp_path: Path) -> None:
    content = document()
    (content[table] if table else content)[name] = value
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, content)
    assert sentence in str(refused.value)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    content = document()
    content["store"]["read_gib"] = content["kafka"]["zones"] = content["use"]["listings_per_month"] = "many"
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, content)
    assert len(str(refused.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "cannot be parsed"),
        ("[" * 100_000, "cannot be parsed"),
        ("3", "the document is not an object"),
        ("\xff", "cannot be parsed"),
        (" " * (1 << 18) + "{}", "more than 262144 bytes"),
    ],
)
def test_another_file_is_named(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=why) as refused:
        read_prices(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("line", ["store = ", "name = ", "other = ", "[store]\nread_gib = "])
@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000], ids=["decimal", "hexadecimal"])
def test_a_number_of_thousands_of_digits_is_one_sentence(line: str, number: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(line + number)
    with pytest.raises(ConfigError, match=r"prices\.toml' cannot be parsed: Exceeds the limit"):
        read_prices(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-prices\.toml' cannot be read: No such file"):
        read_prices(tmp_path / "no-prices.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_prices(tmp_path)
