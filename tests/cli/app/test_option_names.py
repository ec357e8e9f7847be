"""An option means the same in all commands, and none of the former options is left."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

from tests.support.cli.screens import commands_below
from tieredstore.cli.app.main import program
from tieredstore.query.writers import WRITERS

GONE: Final = {
    "--text", "--csv", "--json-bytes", "--count", "--exit-eof", "--mode", "--topic", "--metadata-topic", "--before",
    "--to-store", "--report", "--check", "--first-offset", "--last-offset", "--key-type", "--value-type",
    "--invalid-as-null", "--seed", "--growth-by", "--retire", "--raw", "--threads", "--since", "--partition",
}  # fmt: skip


def declarations() -> dict[str, set[tuple[str, str]]]:
    """Return each option with its help texts in all commands that have it."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for _, command in commands_below(program()):
        for option in command.params:
            for name in option.opts:
                if name.startswith("-"):
                    found[name].add((str(option.help), str(option.metavar)))
    return found


def test_an_option_means_the_same_in_every_command() -> None:
    assert {name: said for name, said in declarations().items() if len(said) > 1} == {}


def test_the_help_of_format_names_every_format() -> None:
    helps = [text for text, metavar in declarations()["--format"] if metavar == "FORMAT"]
    assert helps
    assert [name for text in helps for name in WRITERS if not re.search(rf"\b{name}\b", text)] == []


def test_nothing_is_left_of_the_options_that_went() -> None:
    for path, command in commands_below(program()):
        left = {name for option in command.params for name in option.opts} & GONE
        assert left == set(), path
