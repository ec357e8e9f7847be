"""One default isolation, for every way to read a topic."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.support.module_imports import product_sources
from tieredstore.cli.app.options import Records
from tieredstore.consumer.settings import parse_settings
from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.pipelines.config.settings import PipelineSettings
from tieredstore.spark.source.options import parse_options

ALLOWED: Final = {
    "DEFAULT_ISOLATION",
    # None means the object's own isolation, or one that depends on the kind of source.
    "None",
}
CALLED: Final = {"isolation", "isolation_level"}


def defaults_in(tree: ast.AST) -> Iterator[str]:
    """Yield the defaults of all parameters and fields that hold an isolation."""
    for node in ast.walk(tree):
        match node:
            case ast.arguments():
                positional = [*node.posonlyargs, *node.args]
                given = [*zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)]
                given += [
                    (name, default) for name, default in zip(node.kwonlyargs, node.kw_defaults, strict=True) if default
                ]
                yield from (ast.unparse(default) for name, default in given if name.arg in CALLED)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as default) if name in CALLED:
                of_field = [word.value for word in getattr(default, "keywords", []) if word.arg == "default"]
                yield from (ast.unparse(one) for one in of_field or [default])
            case _:
                pass


def isolations() -> dict[str, list[str]]:
    """Return the defaults by module."""
    texts = {name: path.read_text() for name, path in product_sources().items() if path.suffix == ".py"}
    # Parse only modules with the word, because parsing all of them would take seconds.
    found = {name: list(defaults_in(ast.parse(text))) for name, text in texts.items() if "isolation" in text}
    return {name: defaults for name, defaults in found.items() if defaults}


def test_every_signature_has_the_one_default() -> None:
    found = isolations()
    assert {module: defaults for module, defaults in found.items() if not set(defaults) <= ALLOWED} == {}
    readers = {"polars", "duckdb", "query.topic_table", "records.settings", "reading.query"}
    assert {f"tieredstore.{name}" for name in readers} < found.keys()


def test_settings_and_options_have_it_too() -> None:
    consumer = parse_settings(
        {"bootstrap.servers": "127.0.0.1:9092", "group.id": "g", "tiered.storage.mode": "kafka_only"}
    )
    assert consumer.isolation == DEFAULT_ISOLATION == Records().isolation
    spark = parse_options({"subscribe": "orders", "storage.backend.class": "filesystem"}, streaming=False)
    assert spark.isolation == PipelineSettings.model_fields["isolation"].default == DEFAULT_ISOLATION
