"""One word, one meaning: the glossary of docs/design/core.md against the names of classes and modules."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.module_imports import product_sources
from tests.support.paths import REPOSITORY

SAYS_NOTHING: Final = frozenset(
    [
        "ahead",
        "against",
        "claims",
        "consumed",
        "crew",
        "family",
        "following",
        "last_words",
        "left_out",
        "levels",
        "looks",
        "once",
        "opened",
        "parts",
        "room",
        "seen",
        "setup",
        "starting",
        "stretch",
        "troubles",
        "usual",
    ]
)
"""Names of modules that do not describe their contents."""


def glossary() -> dict[str, tuple[list[str], list[str]]]:
    """Return each word with the classes named by it, and with the words that it replaces."""
    page = (REPOSITORY / "docs" / "design" / "core.md").read_text()
    table = page.partition("word | means |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
    return {word: (re.findall(r"`(\w+)`", named), re.findall(r"\w+", replaced)) for word, _, named, replaced in rows}


def types_in(path: Path) -> list[str]:
    """Return the classes of a module, and its type aliases."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.AnnAssign(target=ast.Name(id=name))
                | ast.Assign(targets=[ast.Name(id=name)])
            ):
                names.append(name)
            case _:
                pass
    return [name for name in names if re.fullmatch(r"_?(?:[A-Z][a-z0-9]+)+", name)]


@functools.cache
def types_of_product() -> list[tuple[str, str]]:
    """Return the types of all modules, with and without their module's name."""
    sources = {module: path for module, path in product_sources().items() if path.suffix == ".py"}
    return [(f"{module}.{name}", name) for module, path in sources.items() for name in types_in(path)]


WORDS: Final = glossary()


def against_the_glossary() -> set[str]:
    """Return names of types with a replaced word, and meaningless names of modules."""
    replaced = {word for _, words in WORDS.values() for word in words}
    modules = {name for name in product_sources() if name.rpartition(".")[2] in SAYS_NOTHING}
    return modules | {
        name for name, own in types_of_product() if replaced.intersection(re.findall("[A-Z][a-z0-9]+", own))
    }


def with_a_second_meaning() -> set[str]:
    """Return types whose whole name is a word of the glossary with another meaning."""
    bare = {word.title() for word in WORDS}
    meant = {own for named, _ in WORDS.values() for own in named}
    alone = [(name, own) for name, own in types_of_product() if own in bare]
    homes = Counter(own for _, own in alone)
    return {name for name, own in alone if own not in meant or homes[own] > 1}


@pytest.mark.slow
def test_names_have_the_words_of_the_glossary() -> None:
    assert not against_the_glossary() | with_a_second_meaning()


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_names_types_that_there_are(word: str) -> None:
    assert WORDS[word][0]
    assert set(WORDS[word][0]) <= {own for _, own in types_of_product()}
