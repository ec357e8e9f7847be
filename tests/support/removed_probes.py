"""Slipcover's probes, removed when they were reached some times, because each costs as much as a line of Python."""

from __future__ import annotations

import dis
import importlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

_slipcover: Final[Any] = importlib.import_module("slipcover")  # no types
_REMOVED_AFTER: Final = 300
"""Number of times that a line or branch is reached until all probes reached so far are removed."""


class Probes(_slipcover.Slipcover):  # type: ignore[misc]
    """Slipcover that removes reached probes quickly, so that it can do so often.

    Slipcover itself looks for a code's functions among all functions of all modules, in 0.1 s, and does not find those
    of properties and wrapped functions. This class keeps the functions of each file from the import on.
    """

    def __init__(self, exclude_also: Sequence[str] = ()) -> None:
        super().__init__(branch=True, d_miss_threshold=_REMOVED_AFTER, exclude_also=exclude_also)
        self._functions: dict[str, list[tuple[FunctionType, _Tree]]] = {}

    def register_functions(self, module: ModuleType) -> None:
        """Keep the functions that an imported module has defined."""
        found: dict[int, FunctionType | None] = {}
        for value in list(vars(module).values()):
            _find_functions(value, module.__name__, found)
        with self.lock:
            for function in filter(None, found.values()):
                file = function.__code__.co_filename
                if file in self.code_lines and function.__code__ in self.code2index:
                    self._functions.setdefault(file, []).append((function, self._tree_of(function.__code__)))

    def _tree_of(self, code: CodeType) -> _Tree:
        inner = [(at, each) for at, each in enumerate(code.co_consts) if isinstance(each, CodeType)]
        return _Tree(self.code2index[code], [(at, self._tree_of(each)) for at, each in inner])

    def deinstrument_seen(self) -> None:
        """Remove the reached probes. A probe calls this when it is reached often."""
        with self.lock:
            for file, places in self._get_newly_seen().items():
                self.all_seen[file].update(places)
                for function, tree in self._functions.get(file, ()):
                    code = _without_probes(function.__code__, tree, places)
                    if code is not function.__code__:
                        function.__code__ = code


class _Tree(NamedTuple):
    """Probes of a code object, each by its position and its line or branch, and of the code objects among its
    constants.
    """

    places: list[tuple[int, object]]
    inner: list[tuple[int, _Tree]]


def _find_functions(value: object, module: str, found: dict[int, FunctionType | None]) -> None:
    """Add the module's functions in ``value``: itself, a function that it wraps, or the members of a class."""
    kind = type(value)
    if issubclass(kind, type):
        of_class: Any = value
        if of_class.__module__ == module and id(value) not in found:
            found[id(value)] = None  # so that each class is visited once
            for member in list(vars(of_class).values()):
                _find_functions(member, module, found)
    elif kind is property:
        accessors: Any = value
        for accessor in (accessors.fget, accessors.fset, accessors.fdel):
            _find_functions(accessor, module, found)
    elif kind in _WRAPPERS:
        _find_functions(getattr(value, _WRAPPERS[kind]), module, found)
    elif isinstance(value, FunctionType) and value.__module__ == module and id(value) not in found:
        found[id(value)] = value
        _find_functions(getattr(value, "__wrapped__", None), module, found)


_WRAPPERS: Final[Mapping[type, str]] = {
    classmethod: "__func__",
    staticmethod: "__func__",
    cached_property: "func",
    type(cache(repr)): "__wrapped__",
}


def _without_probes(code: CodeType, tree: _Tree, places: set[object]) -> CodeType:
    changed: dict[str, Any] = {}
    inner = [(at, _without_probes(code.co_consts[at], each, places)) for at, each in tree.inner]
    if any(each is not code.co_consts[at] for at, each in inner):
        constants = list(code.co_consts)
        for at, each in inner:
            constants[at] = each
        changed["co_consts"] = tuple(constants)
    if reached := [at for at, place in tree.places if place in places]:
        raw = bytearray(code.co_code)
        for at in reached:
            if raw[at] == _NOP:  # its argument is the length of the call
                raw[at] = _JUMP_FORWARD
        changed["co_code"] = bytes(raw)
    return code.replace(**changed) if changed else code


_NOP: Final = dis.opmap["NOP"]
_JUMP_FORWARD: Final = dis.opmap["JUMP_FORWARD"]
