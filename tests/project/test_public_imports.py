"""README, documents and examples import only public names: those of ``__all__`` of twelve packages."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY

PUBLIC = {
    "tieredstore",
    *(
        f"tieredstore.{name}"
        for name in (
            "backends", "duckdb", "errors", "pipelines", "polars", "pubsub", "spark", "testing", "types", "uploader",
            "values",
        )
    ),
}  # fmt: skip

OF_METRICS = {"REGISTRY", "serve_metrics"}
"""Public names of ``tieredstore.metrics``, which the reference does not list."""

_FENCE = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def sources() -> Iterator[tuple[str, str]]:
    """Yield each program that a user may copy, and its place."""
    for page in [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]:
        yield from ((name_of(page), textwrap.dedent(code)) for code in _FENCE.findall(page.read_text()))
    for file in (REPOSITORY / "examples").rglob("*.py"):
        yield name_of(file), file.read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def imports(code: str) -> Iterator[tuple[str, str | None]]:
    """Yield the package's modules that the code imports, and the imported names."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def test_what_people_copy_imports_public_names_alone() -> None:
    others: set[tuple[str, str]] = set()
    for where, code in sources():
        for module, name in imports(code):
            if module.partition(".")[0] == "tieredstore" and not is_public(module, name):
                others.add((where, module))
    assert others == set()


def is_public(module: str, name: str | None) -> bool:
    if f"{module}.{name}" in PUBLIC or (module == "tieredstore.metrics" and name in OF_METRICS):
        return True
    return module in PUBLIC and (name is None or name in public_names(module))


def public_names(module: str) -> list[str]:
    """Return the public names of a package; for ``tieredstore.errors``, return all names."""
    imported = importlib.import_module(module)
    return list(vars(imported)) if module == "tieredstore.errors" else list(getattr(imported, "__all__", []))


def test_the_package_alone_imports_the_types_that_pages_name() -> None:
    assert "ts.types.Json(" in (REPOSITORY / "README.md").read_text()
    assert run_fresh("import tieredstore as ts; print(ts.types.Uuid.__name__)") == "Uuid\n"
