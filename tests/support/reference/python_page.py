"""Python API page, from the public packages' ``__all__``, signatures and docstrings."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import tieredstore

_INTRO: Final = """# Python

For programmers who use `tieredstore`. `make docs` generates this page from signatures and first sentences. For
each name, `help` has the whole text with all types, as in `help(tieredstore.Bucket.read)`.

```python
import tieredstore as ts

with ts.open("store.properties") as bucket:
    for record in bucket.read("orders", last=3):
        print(record.offset, record.value)
```

- **Public** are the names on this page. Everything else may change at any time.
- **Sources.** Wherever a store is expected, give a path or URL, a settings or `server.properties` file, a mapping,
  `Settings`, or a `Bucket`. Keywords are settings with `_` for `.`: `chunk_size=1 << 20`. Without a source,
  `TIEREDSTORE_SETTINGS` names the file.
- **Places** (`start`, `stop`) are an offset, an aware `datetime`, a `date`, or text as on the command line:
  `yesterday`, `-1h`, `2026-01-31T08:00Z`, `@1769846400000`. `stop` is exclusive.
- **`**which`** is `partitions`, `topic_id` and `parallel`. **`**how`** is
  {how}.
- **Keys and values** are bytes for programs and text in SQL, unless `key=` or `value=` say `"bytes"`, `"text"`,
  `"json"`, `Json(...)` or `Avro(...)`.
- **Errors** derive from `TieredStoreError`; `tieredstore.errors` has them all, by [exit code](commands.md#exit-codes).
  Wrong arguments are `ConfigError`, also a ValueError, before any request. If `error.retryable`, try again.
- **Threads.** A bucket, a manager and a producer serve all threads; a read and a consumer one thread at a time.
"""

_PACKAGES: Final = (
    "types", "values", "duckdb", "polars", "spark", "uploader", "pipelines", "pubsub", "backends", "testing"
)  # fmt: skip
_MADE: Final = {"BatchConsumer", "BatchProducer", "Consumer", "RemoteStorageManager", "Uploader"}
"""Classes that users instantiate."""
_DESCRIBED: Final = {"tieredstore.spark", "tieredstore.testing"}
"""Packages whose classes the page describes by a sentence. Python's `help` describes those of other packages."""
_LONGEST: Final = 30
_SHOWN: Final = {"Uploader": {"__init__", "close", "plan", "run", "run_once", "stop"}}
"""The methods that the page shows, by class. The other public methods of the class are steps of its loop, so the page
omits them.
"""
_FOR_ROOMS: Final = {"check_open", "on_this_thread", "opened", "requests_at_once", "section", "with_section"}
"""Public members that are meant for other subpackages, not for users."""
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")
_MODULE: Final = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")
"""Module names in the text of a type alias, to be removed."""
_SENTENCE: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)\s")


def render_page() -> str:
    """Return the page."""
    how = ", ".join(f"`{name}`" for name in importlib.import_module("tieredstore.types").ReadOptions.__annotations__)
    lines = [_INTRO.replace("{how}", how).rstrip("\n"), "", "## tieredstore", ""]
    names = sorted(tieredstore.__all__, key=lambda name: (not name.islower(), name))
    values = {name: getattr(tieredstore, name) for name in names}
    for name, value in values.items():
        if inspect.isfunction(value):
            lines.append(f"- `{name}{short_signature(value)}`: {first_sentence(value)}")
    lines.append("- `__version__`: The version of the package.")
    for name, value in values.items():
        if inspect.isclass(value) and not issubclass(value, Exception):
            lines += ["", f"### {name}", "", first_sentence(value), "", *_members(value)]
    seen = {id(value): "tieredstore" for value in values.values()}
    for package in _PACKAGES:
        lines += ["", f"## tieredstore.{package}", "", *_names(importlib.import_module(f"tieredstore.{package}"), seen)]
    return "\n".join(lines) + "\n"


def first_sentence(value: object) -> str:
    """Return a docstring's first sentence, as Markdown."""
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = _ROLE.sub(r"`\1`", _SENTENCE.split(paragraph)[0]).replace("``", "`").rstrip(":")
    words = sentence.removeprefix("Return ")
    return f"{words[0].upper()}{words[1:]}" if words != sentence else sentence


def short_signature(function: Any) -> str:
    """Return a signature without types, except for a result type of this library."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    given = [
        each.replace(annotation=empty, default=... if len(repr(each.default)) > _LONGEST else each.default)
        for each in signature.parameters.values()
    ]
    given = [each for each in given if each.name != "self" and (each.default is empty or not callable(each.default))]
    result = str(signature.return_annotation)
    shown = str(inspect.Signature(given)).replace("Ellipsis", "...").replace(", /)", ")").replace(", /,", ",")
    return shown if result in ("None", str(inspect.Signature.empty)) else f"{shown} -> {result}"


def _members(of: type) -> Iterator[str]:
    if issubclass(of, enum.Enum):
        return
    fields: dict[str, Any] = getattr(of, "__dataclass_fields__", {})
    own = {name for base in of.__mro__ if base.__module__.startswith("tieredstore.") for name in vars(base)}
    shown = [name for name in fields if not name.startswith("_")]
    if any(base.__module__ == "cimpl" for base in of.__mro__):
        yield "- all methods of `confluent_kafka.Consumer`"
    if shown and of is not tieredstore.Settings:
        yield f"- fields: {', '.join(f'`{name}`' for name in shown)}"
    foreign = {name for base in of.__mro__[1:] if base.__module__ != "builtins" for name in _inherited(base)}
    for name in sorted(_SHOWN.get(of.__name__, own - set(fields) - foreign - _FOR_ROOMS)):
        member = inspect.getattr_static(of, name)
        if name == "__init__" and of.__name__ in _MADE:
            yield f"- `{of.__name__}{short_signature(getattr(of, name))}`"
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"- `{name}`: {first_sentence(member)}"
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            words = first_sentence(getattr(of, name))
            yield f"- `{name}{short_signature(getattr(of, name))}`{f': {words}' if words else ''}"


def _inherited(base: type) -> set[str]:
    """Return the members of an external base class (confluent-kafka's consumer), which its own docs describe."""
    return set() if base.__module__.startswith("tieredstore.") else set(vars(base)) - {"__init__"}


def _names(module: ModuleType, seen: dict[int, str]) -> Iterator[str]:
    """Yield a package's names, except those that an earlier package also has."""
    again: list[str] = []
    plain: list[str] = []
    for name in sorted(module.__all__):
        value = getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")
        if seen.setdefault(id(value), module.__name__) != module.__name__:
            again.append(f"`{name}`")
            continue
        if not inspect.isfunction(value) and module.__name__ not in _DESCRIBED:
            plain.append(f"`{name}`")
        elif inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
            signature = short_signature(value) if inspect.isfunction(value) else ""
            yield f"- `{name}{signature}`: {first_sentence(value)}"
        else:
            yield f"- `{name}` = `{_MODULE.sub('', str(value))}`"
    if plain:
        yield f"- {', '.join(plain)}"
    if again:
        yield f"- also here: {', '.join(again)}"
