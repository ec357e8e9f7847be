"""The package's own imports, read from its sources: which module needs which others before it can run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from tests.support.paths import REPOSITORY

ImportGraph: TypeAlias = Mapping[str, frozenset[str]]
"""For each module those that it imports itself."""


def product_sources() -> dict[str, Path]:
    """The package's modules by name. A compiled one is there too, as a module that imports none."""
    folders = {"tieredstore": REPOSITORY / "tieredstore", "tieredstore.backends": REPOSITORY / "backends"}
    sources: dict[str, Path] = {}
    for package, folder in folders.items():
        # rglob does not follow links, so that backends, a link inside of tieredstore, is read once
        for path in (*folder.rglob("*.py"), *folder.rglob("*.pyx")):
            dotted = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            sources[dotted.removesuffix(".__init__")] = path
    return sources


def import_graph(sources: Mapping[str, Path]) -> ImportGraph:
    """Who imports whom when a module is run.

    Counted are the imports that run with the module: not those under ``if TYPE_CHECKING`` and not those inside of
    functions. ``from package import name`` is an import of the module ``package.name`` where that is one, else of
    ``package``. Packages that are only passed through on the way to a module are not counted as imported.
    """
    return {name: frozenset(_imported(path, sources) - {name}) for name, path in sources.items()}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once."""
    return ast.parse(path.read_text())


def importers(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return for each module those that import it, within functions and for types too."""
    users: dict[str, set[str]] = {name: set() for name in sources}
    for name, path in sources.items():
        statements = ast.walk(tree_of(path)) if path.suffix == ".py" else ()
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for imported in _names(statement, sources):
                    if imported in users and imported != name:
                        users[imported].add(name)
    return users


def longest_chain(graph: ImportGraph) -> tuple[str, ...]:
    """The longest run of modules of which each imports the next; CycleError, which names them, for a circle."""
    chains: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(graph).static_order():
        below = max((chains[imported] for imported in graph[name]), key=len, default=())
        chains[name] = (name, *below)
    return max(chains.values(), key=len)


def _imported(path: Path, sources: Mapping[str, Path]) -> set[str]:
    if path.suffix != ".py":
        return set()
    statements = _run_at_import(tree_of(path).body)
    return {name for statement in statements for name in _names(statement, sources) if name in sources}


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from _run_at_import(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # bodies of if, try, with and class
            blocks = (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.ExceptHandler))
            yield from _run_at_import(child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))
            yield from _run_at_import(inner for block in blocks for inner in block.body)


def _names(statement: ast.Import | ast.ImportFrom, sources: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    package = statement.module or ""
    for alias in statement.names:
        inner = f"{package}.{alias.name}"
        yield inner if inner in sources else package
