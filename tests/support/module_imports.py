"""Internal imports of the package, read from its sources: the modules that each module needs before it can run."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from tests.support.paths import REPOSITORY

ImportGraph: TypeAlias = Mapping[str, frozenset[str]]
"""Direct imports of each module."""


def product_sources() -> dict[str, Path]:
    """Return the package's modules by name. A compiled module is included, without imports."""
    folders = {"tieredstore": REPOSITORY / "tieredstore", "tieredstore.backends": REPOSITORY / "backends"}
    sources: dict[str, Path] = {}
    for package, folder in folders.items():
        # rglob does not follow links, so backends (a link inside tieredstore) is read once
        for path in (*folder.rglob("*.py"), *folder.rglob("*.pyx")):
            dotted = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            sources[dotted.removesuffix(".__init__")] = path
    return sources


def import_graph(sources: Mapping[str, Path]) -> ImportGraph:
    """Return the direct imports that happen when each module runs.

    Imports under ``if TYPE_CHECKING`` and inside functions do not count. ``from package import name`` imports the
    module ``package.name`` if it exists, else ``package``. Importing a module does not count as importing its parent
    packages.
    """
    return {name: frozenset(_imported(path, sources) - {name}) for name, path in sources.items()}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file, parsed once.

    The garbage collector ignores the kept trees, because its searches through them would take most of the time.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.freeze()
        gc.enable()


def importers(sources: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the modules that import each module, including imports within functions and for types."""
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
    """Return the longest chain of imports; raise CycleError, which names the modules, for a cycle."""
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
