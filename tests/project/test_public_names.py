"""Public names and signatures match the recorded ones, so that each change is deliberate and announced."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import tieredstore as ts
from tieredstore import types

FILE = Path(__file__).with_name("public_names.txt")

pytestmark = pytest.mark.skipif(find_spec("tieredstore.consumer") is None, reason="the wings' names are public too")


def lines() -> Iterator[str]:
    for name in sorted(ts.__all__):
        value = getattr(ts, name)
        if inspect.isclass(value):
            yield f"class {name}"
            yield from (f"    {line}" for line in members(value))
        elif callable(value):
            yield f"def {name}{inspect.signature(value)}"
        elif inspect.ismodule(value):
            yield f"module {name}"
            yield from (f"    class {error}({bases(member)})" for error, member in sorted(errors().items()))
        else:
            yield f"{name}: {type(value).__name__}"
    yield "module types"
    for name in types.__all__:
        value = getattr(types, name)
        if inspect.isclass(value) and is_dataclass(value):
            yield f"    class {name}{next(members(value))}"
        else:
            yield f"    {name}"


def members(of: type) -> Iterator[str]:
    if is_dataclass(of):
        public = {name: kind for name, kind in of.__annotations__.items() if not name.startswith("_")}
        yield f"({', '.join(f'{name}: {kind}' for name, kind in public.items())})"
    if issubclass(of, enum.Enum):
        yield ", ".join(member.value for member in of)
    fields = set(getattr(of, "__dataclass_fields__", {}))
    own = {name for base in of.__mro__ if base.__module__.startswith("tieredstore.") for name in vars(base)}
    for name in sorted(own - fields):
        member = inspect.getattr_static(of, name)
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property) and member.fget is not None:
            yield f"{name} -> {inspect.signature(member.fget).return_annotation}"
        elif name == "__init__" and is_dataclass(of):
            continue
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            yield f"def {name}{inspect.signature(getattr(of, name))}"


def errors() -> dict[str, type[Exception]]:
    found = {name: member for name, member in vars(ts.errors).items() if inspect.isclass(member)}
    return {name: member for name, member in found.items() if issubclass(member, ts.TieredStoreError)}


def bases(error: type[Exception]) -> str:
    return ", ".join(base.__name__ for base in error.__bases__)


def test_the_public_names_are_those_that_are_written_down() -> None:
    assert "\n".join(lines()) + "\n" == FILE.read_text()


def test_every_public_name_says_what_it_is() -> None:
    values = [getattr(ts, name) for name in ts.__all__ if name != "__version__"]
    values += [value for name in types.__all__ if inspect.isclass(value := getattr(types, name))]
    methods = [
        member
        for value in values
        if inspect.isclass(value) and value.__module__.startswith("tieredstore.api.")
        for name, member in vars(value).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]
    assert [value for value in [*values, *methods] if not inspect.getdoc(value)] == []


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n")
