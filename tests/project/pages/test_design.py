"""Pages of docs/design, and SECURITY.md: they match the code's store contract, and name existing places. The docstring
of ``errors`` has the whole error tree.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.project.pages.test_contributing import places
from tests.project.test_docs import blocks
from tests.support.cli.cli_process import tieredstore
from tests.support.module_imports import product_sources
from tests.support.paths import REPOSITORY
from tieredstore import errors
from tieredstore.backends.base import ObjectStore, StoreAdmin
from tieredstore.errors import TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.pubsub import errors as pubsub_errors
from tieredstore.testing.segments import build_segment

FOLDER: Final = REPOSITORY / "docs" / "design"
PAGES: Final = [*sorted(FOLDER.glob("*.md")), REPOSITORY / "SECURITY.md"]
CORE: Final = (FOLDER / "core.md").read_text()
OURS: Final = {errors.__name__, pubsub_errors.__name__}
SPANS: Final = re.compile(r"`([^`\n]+)`")
PRODUCT: Final = "".join(path.read_text() for path in product_sources().values())


def below(parent: type[TieredStoreError]) -> list[type[TieredStoreError]]:
    """Return the library's errors that derive directly from ``parent``, by name."""
    children = (each for each in parent.__subclasses__() if each.__module__ in OURS and each.__bases__[0] is parent)
    return sorted(children, key=lambda error: error.__name__)


def test_the_error_tree_of_the_docstring_is_the_one_of_the_code() -> None:
    lines = re.findall(r"^    ([│ ]*)[├└]── (\w+) +(yes|no) +(\d+)", errors.__doc__ or "", re.MULTILINE)
    path: list[str] = ["TieredStoreError"]
    found: dict[str, str] = {}
    for indent, name, retryable, code in lines:
        path = [*path[: len(indent) // 4 + 1], name]
        found[name] = path[-2]
        error = getattr(errors, name, None) or getattr(pubsub_errors, name)
        assert (retryable == "yes", int(code)) == (error.retryable, error.exit_code), name
    assert found == {error.__name__: parent.__name__ for parent, error in pairs(TieredStoreError)}


def pairs(parent: type[TieredStoreError]) -> Iterator[tuple[type[TieredStoreError], type[TieredStoreError]]]:
    for error in below(parent):
        yield parent, error
        yield from pairs(error)


def test_the_store_contract_of_the_page_has_every_verb() -> None:
    table = CORE.partition("verb | promise")[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines()[2:] for name in SPANS.findall(line.split(" | ")[0])]
    verbs = {name for of in (ObjectStore, StoreAdmin) for name in vars(of) if not name.startswith("_")}
    assert sorted(listed) == sorted(verbs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert [place for place in places(text) if not place.exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_classes_that_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    names = {span.partition(".")[0] for span in SPANS.findall(text) if re.match(r"[A-Z][a-z]+[A-Z]\w*", span)}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", PRODUCT)] == []


def test_the_uploaders_example_ships_a_disk(tmp_path: Path) -> None:
    page = FOLDER / "uploader.md"
    (properties,) = blocks(page, "properties")
    (tmp_path / "uploader.properties").write_text(properties)
    (tmp_path / "store").mkdir()
    orders = TopicIdPartition(Uuid.random(), "orders", 0)
    closed = build_segment(tmp_path / "kafka-logs", 3000, partition=orders)
    active_from = closed.to_metadata(Uuid.random()).end_offset + 1
    build_segment(tmp_path / "kafka-logs", 3000, partition=orders, base_offset=active_from)
    (line,) = [line for block in blocks(page, "") for line in block.splitlines()]
    _, *words = line.split()
    with contextlib.chdir(tmp_path):
        done = tieredstore(*words)
    assert done.code == 0, done.stderr
    assert len(list((tmp_path / "store").rglob("*.rsm-manifest"))) == 1
    assert len(list((tmp_path / "store").rglob("watermarks/**/*.json"))) == 1
