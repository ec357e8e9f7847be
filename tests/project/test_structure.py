"""The shape of the house, measured: how deep imports go, and words that every room spells alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.module_imports import import_graph, longest_chain, product_sources
from tests.support.paths import REPOSITORY

MOST_MODULES_IN_A_CHAIN = 16
"""A reader who follows imports from the top to the ground meets no more modules than this."""

SAY_NOTHING = frozenset({"found", "made", "told"})
"""Names that tell how a value came about where a reader asks what it is."""


def sources() -> list[Path]:
    """Every Python file of the repository that is ours, once."""
    folders = ("tieredstore", "backends", "pyspark_memq", "pyspark_tieredstore", "benchmarks", "examples", "tests")
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def test_the_longest_chain_of_imports_is_short() -> None:
    chain = longest_chain(import_graph(product_sources()))
    assert len(chain) <= MOST_MODULES_IN_A_CHAIN, " -> ".join(chain)


def bound_names(tree: ast.AST) -> Iterator[str]:
    """The variables and parameters of a module, one for each place that binds one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def test_variables_are_named_for_what_they_hold() -> None:
    names = {path: set(bound_names(ast.parse(path.read_text()))) & SAY_NOTHING for path in sources()}
    assert not {str(path.relative_to(REPOSITORY)): said for path, said in names.items() if said}


def is_the_one_spelling(statement: ast.stmt) -> bool:
    return ast.unparse(statement) == "_logger: Final = logging.getLogger(__name__)"


def test_every_module_spells_its_logger_alike() -> None:
    others: set[str] = set()
    for name, path in product_sources().items():
        for statement in ast.parse(path.read_text()).body if path.suffix == ".py" else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign) and "getLogger" in ast.unparse(statement):
                others |= set() if is_the_one_spelling(statement) else {name}
    assert not others


WAIT_FOR_FUTURES = {
    "tieredstore.process.futures",
    "tieredstore.transform.pipeline",
    "tieredstore.live.broker_state",
    "tieredstore.live.cluster",
}
"""The one place; one that may import nothing of it and has its own rule; and two whose futures are librdkafka's."""


def test_futures_are_waited_for_in_one_place() -> None:
    """A future that was dropped and that no thread comes by keeps who waits for it in another way waiting for ever."""
    elsewhere: set[str] = set()
    for name, path in product_sources().items():
        if path.suffix != ".py" or name in WAIT_FOR_FUTURES or ".testing" in name:
            continue
        text = path.read_text()
        names = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        imported = {
            alias.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom) and node.module == "concurrent.futures"
            for alias in node.names
        }
        waits = imported & {"wait", "as_completed", "ThreadPoolExecutor"} or (
            "Future" in imported and "result" in names
        )
        elsewhere |= {name} if waits else set()
    assert not elsewhere
