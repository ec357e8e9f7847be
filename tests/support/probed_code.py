"""Product code with Slipcover's probes, made once and kept in ``__pycache__``, as Python keeps its own bytecode.

Without it, Slipcover parses, compiles and rewrites each module at each import, in each worker and in each measured
process. A kept file holds the code of a module with marks in place of the probes, because probes cannot be written to
a file. The import puts this process's probes there.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import marshal
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

_slipcover: Final[Any] = importlib.import_module("slipcover.slipcover")  # no types
_importer: Final[Any] = importlib.import_module("slipcover.importer")
_branch: Final[Any] = importlib.import_module("slipcover.branch")
_NAME: Final = f"slipcover{_slipcover.__version__.replace('.', '')}"
_SIGNAL: Final = ("\0signal",)
_PROBE: Final = "\0probe"

Index = list[tuple[int, object]]
"""Position of each probe in a code object, and its line or branch."""


class ProbedCode(NamedTuple):
    """A module's code with marks for probes, the indexes of its code objects, outermost first, and all its places."""

    code: CodeType
    indexes: list[Index]
    lines: set[int]
    branches: set[tuple[int, int]]


def keep_all(paths: Iterable[Path]) -> None:
    """Keep the code of these modules, except those whose kept code is current."""
    missing = [path for path in paths if kept(path) is None]
    if missing:
        with multiprocessing.Pool(initializer=_make_marks) as pool:
            pool.map(_keep, missing, chunksize=8)


def kept(path: Path) -> ProbedCode | None:
    """Return a module's kept code; return None if there is none, or if the module has changed since."""
    try:
        stamp, *parts = marshal.loads(_file_of(path).read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return ProbedCode(*parts) if stamp == _stamp_of(path) else None


def _file_of(path: Path) -> Path:
    return Path(importlib.util.cache_from_source(path, optimization=_NAME))


def _stamp_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _make_marks() -> None:
    """Make Slipcover insert marks instead of probes, in a process that only keeps code."""
    _slipcover.probe = SimpleNamespace(signal=_SIGNAL, new=lambda _probes, _file, place, _misses: (_PROBE, place))


def _keep(path: Path) -> None:
    stamp, maker = _stamp_of(path), _slipcover.Slipcover(branch=True)
    tree = _branch.preinstrument(ast.parse(path.read_bytes()))
    code = maker.instrument(compile(tree, str(path), "exec", dont_inherit=True))
    indexes = [maker.code2index[each] for each in _all_in(code)]
    file = _file_of(path)
    part = file.with_suffix(f".{os.getpid()}")
    file.parent.mkdir(exist_ok=True)
    part.write_bytes(marshal.dumps((stamp, code, indexes, maker.code_lines[str(path)], maker.code_branches[str(path)])))
    part.replace(file)


def _all_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_in(constant)


class Finder(_importer.SlipcoverMetaPathFinder):  # type: ignore[misc]
    """Finder that imports product modules with probes, from their kept code where there is one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Slipcover's spec, with a loader that looks for kept code."""
        spec: ModuleSpec | None = super().find_spec(fullname, path, target)
        loader: Any = spec and spec.loader
        if isinstance(loader, _importer.SlipcoverLoader) and isinstance(loader.orig_loader, SourceFileLoader):
            assert spec is not None
            spec.loader = Loader(loader.sci, loader.orig_loader, spec.origin)
        return spec


class Loader(_importer.SlipcoverLoader):  # type: ignore[misc]
    """Loader of one product module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's kept code with probes of this process; without kept code, do as Slipcover does."""
        probed = kept(self.origin)
        if probed is None:
            super().exec_module(module)
        else:
            self._exec_kept(module, probed)
        self.sci.register_functions(module)

    def _exec_kept(self, module: ModuleType, probed: ProbedCode) -> None:
        file, probes = str(self.origin), self.sci
        code = self._with_probes(probed.code, iter(probed.indexes))
        with probes.lock:
            probes.code_lines[file].update(probed.lines)
            probes.code_branches[file].update(probed.branches)
        exec(code, module.__dict__)

    def _with_probes(self, code: CodeType, indexes: Iterator[Index]) -> CodeType:
        index = next(indexes)
        file = str(self.origin)
        constants = tuple(self._constant(constant, indexes) for constant in code.co_consts)
        probed = code.replace(co_consts=constants, co_filename=file)
        self.sci.code2index[probed] = index
        return probed

    def _constant(self, constant: Any, indexes: Iterator[Index]) -> object:
        if isinstance(constant, CodeType):
            return self._with_probes(constant, indexes)
        if type(constant) is tuple and constant:
            if constant == _SIGNAL:
                return _slipcover.probe.signal
            if constant[0] == _PROBE:
                return _slipcover.probe.new(self.sci, str(self.origin), constant[1], self.sci.d_miss_threshold)
        return constant
