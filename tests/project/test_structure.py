"""The shape of the house, measured: how deep imports go, and words that every room spells alike."""

from __future__ import annotations

import ast

from tests.support.module_imports import import_graph, longest_chain, product_sources

MOST_MODULES_IN_A_CHAIN = 16
"""A reader who follows imports from the top to the ground meets no more modules than this."""


def test_the_longest_chain_of_imports_is_short() -> None:
    chain = longest_chain(import_graph(product_sources()))
    assert len(chain) <= MOST_MODULES_IN_A_CHAIN, " -> ".join(chain)


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
