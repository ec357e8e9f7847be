"""Structure of the code, measured: depth of imports, length of files, and files per folder."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.module_imports import import_graph, importers, longest_chain, product_sources, tree_of
from tests.support.paths import REPOSITORY

MOST_MODULES_IN_A_CHAIN = 17
"""Following imports from top to bottom passes at most this many modules."""


@pytest.mark.slow
def test_the_longest_chain_of_imports_is_short() -> None:
    chain = longest_chain(import_graph(product_sources()))
    assert len(chain) <= MOST_MODULES_IN_A_CHAIN, " -> ".join(chain)


MOST_FILES, MOST_LINES = 25, 600
"""The most files in a folder, and the most lines in a file."""


def sources() -> list[Path]:
    """Return every file with code of the product, its tests and its benchmarks."""
    roots = (
        "backends",
        "benchmarks",
        "examples",
        "pyspark_memq",
        "pyspark_tieredstore",
        "scripts",
        "tests",
        "tieredstore",
    )
    paths = [path for root in roots for path in (REPOSITORY / root).rglob("*")]
    return [path for path in paths if path.suffix in {".py", ".pyx", ".pxd", ".c", ".h"} and is_written_by_hand(path)]


def is_written_by_hand(path: Path) -> bool:
    return path.suffix != ".c" or not path.with_suffix(".pyx").exists()


def test_folders_have_at_most_25_files() -> None:
    files = Counter(str(path.parent.relative_to(REPOSITORY)) for path in sources())
    over = {folder: count for folder, count in files.items() if count > MOST_FILES}
    assert not over


def test_files_have_at_most_600_lines() -> None:
    lines = {str(path.relative_to(REPOSITORY)): path.read_bytes().count(b"\n") for path in sources()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


REASON = re.compile(r"\b([Aa]part from|[Bb]eside|[Ss]eparate|[Ii]mport(s|ed)|its (one|only) user)\b")


def test_a_module_that_one_neighbour_alone_imports_says_why_it_lies_apart() -> None:
    sources = product_sources()
    apart: set[str] = set()
    for name, users in importers(sources).items():
        folders = {user.rpartition(".")[0] for user in users}
        if len(users) == 1 and folders == {name.rpartition(".")[0]} and sources[name].suffix == ".py":
            docstring = " ".join((ast.get_docstring(tree_of(sources[name])) or "").split())
            apart |= set() if REASON.search(docstring) else {name}
    assert not apart


WAIT_FOR_FUTURES = {
    "tieredstore.process.futures",
    "tieredstore.transform.chunks",
    "tieredstore.live.broker_state",
    "tieredstore.live.clients",
}
"""Modules that wait for futures: ``process.futures``, which other modules use; ``transform.chunks``, which may not
import ``process``; and two modules that wait for librdkafka's futures.
"""


def test_futures_are_waited_for_in_one_place() -> None:
    """A wait by ``process.futures`` also ends if the work is dropped. A wait by ``concurrent.futures`` would never end
    then.
    """
    elsewhere: set[str] = set()
    for name, path in product_sources().items():
        if path.suffix != ".py" or name in WAIT_FOR_FUTURES or ".testing" in name:
            continue
        text = path.read_text()
        if "concurrent.futures" not in text:
            continue
        nodes = list(ast.walk(tree_of(path)))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        imported = {
            alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == "concurrent.futures"
            for alias in node.names
        }
        waits = imported & {"wait", "as_completed", "ThreadPoolExecutor"} or (
            "Future" in imported and "result" in names
        )
        elsewhere |= {name} if waits else set()
    assert not elsewhere


def test_own_modules_are_imported_by_statements() -> None:
    """An import by a name in a string hides a module from the checks of layers and of types."""
    calls = [
        (f"{path}:{node.lineno}", ast.unparse(node.args[0]))
        for path in product_sources().values()
        if path.suffix == ".py" and "import_module" in path.read_text()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
    ]
    assert calls, "none is found"
    assert not [call for call in calls if re.search(r"tieredstore|__name__|__package__", call[1])]


MOST_LINES_WITH_ANY, MOST_FIELDS = 300, 12
"""The most lines that name the type Any, and the most fields of an object that may change without a reason."""


def test_few_lines_name_the_type_any() -> None:
    code = "\n".join(path.read_text() for path in product_sources().values() if path.suffix == ".py")
    assert len(re.findall(r"^.*\bAny\b(?! [a-z]).*$", code, re.MULTILINE)) <= MOST_LINES_WITH_ANY


def mutable_fields(node: ast.ClassDef) -> set[str]:
    """Return the fields of a data class that is not frozen, and those that a method assigns after the constructor."""
    kind = " ".join(map(ast.unparse, node.decorator_list))
    is_mutable = "dataclass" in kind and "frozen=True" not in kind
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
    return {
        each.target.id
        for each in node.body
        if is_mutable and isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    } | {
        each.attr
        for method in methods
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }


def test_an_object_with_many_mutable_fields_says_why() -> None:
    without = {
        f"{name}.{node.name}"
        for name, path in product_sources().items()
        if path.suffix == ".py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and len(mutable_fields(node)) > MOST_FIELDS
        and not re.search(r"\bfields?\b", ast.get_docstring(node) or "")
    }
    assert not without
