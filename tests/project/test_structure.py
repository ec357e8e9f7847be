"""The shape of the house, measured: how deep imports go, and words that every room spells alike."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.module_imports import import_graph, longest_chain, product_sources
from tests.support.paths import REPOSITORY

MOST_MODULES_IN_A_CHAIN = 16
"""A reader who follows imports from the top to the ground meets no more modules than this."""

SAY_NOTHING = frozenset({"found", "made", "told"})
"""Names that tell how a value came about where a reader asks what it is."""

STILL_SAYING_NOTHING = {
    "tests/backends": 33,
    "tests/cli": 12,
    "tests/spark": 64,
}
"""How many variables of each room have such a name; the rooms that are not listed have none. Only ever lowered."""


def sources() -> list[Path]:
    """Every Python file of the repository that is ours, once."""
    folders = ("tieredstore", "backends", "pyspark_tieredstore", "benchmarks", "examples", "tests")
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


def room_of(path: Path) -> str:
    """The folder below the top one that a file lies in: ``tests/kafka``, ``backends/s3``; a file there is alone."""
    return "/".join(path.relative_to(REPOSITORY).parts[:2])


def test_variables_are_named_for_what_they_hold() -> None:
    counts: Counter[str] = Counter()
    for path in sources():
        counts[room_of(path)] += sum(name in SAY_NOTHING for name in bound_names(ast.parse(path.read_text())))
    over = {room: count for room, count in counts.items() if count > STILL_SAYING_NOTHING.get(room, 0)}
    assert not over, f"variables named {', '.join(sorted(SAY_NOTHING))}, and how many are too many: {over}"


def is_the_one_spelling(statement: ast.stmt) -> bool:
    return ast.unparse(statement) == "_logger: Final = logging.getLogger(__name__)"


def test_every_module_spells_its_logger_alike() -> None:
    others: set[str] = set()
    for name, path in product_sources().items():
        for statement in ast.parse(path.read_text()).body if path.suffix == ".py" else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign) and "getLogger" in ast.unparse(statement):
                others |= set() if is_the_one_spelling(statement) else {name}
    assert not others
