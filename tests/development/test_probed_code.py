"""Kept code, and probes that are removed early, measure the same as Slipcover alone."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.probed_code import Loader, kept
from tests.support.removed_probes import Probes

_slipcover: Any = importlib.import_module("slipcover")
_importer: Any = importlib.import_module("slipcover.importer")

CODE = '''
"""A module with each kind of branch."""
from __future__ import annotations
import contextlib
import functools
PAIRS = (("a", 1), ("b", 2))
class Sized:
    @property
    def name(self):
        return "sized"
    @functools.cached_property
    def kind(self):
        return "kind"
    @staticmethod
    def still():
        return 1
    @classmethod
    def of(cls):
        return cls()
    def size(self, number: int) -> str:
        def inner(small):
            return "small" if small else "large"
        if number < 3:
            return inner(True)
        return inner(False)
@functools.cache
def doubled(number):
    return number * 2
@contextlib.contextmanager
def around():
    yield 1
def unused():
    return 1
def walk(numbers, kind=None):
    """Walk."""
    with around():
        sized = Sized.of()
        assert (sized.name, sized.kind, sized.still(), doubled(len(numbers))) == ("sized", "kind", 1, 2 * len(numbers))
    found = []
    for number in numbers:
        try:
            found.append(10 // number)
        except ZeroDivisionError:
            continue
        else:
            found.append(Sized().size(number))
        finally:
            found.append("end")
    else:
        found.append("else")
    while len(found) > 100:
        found.pop()
    match kind:
        case {"a": value}:
            found.append(value)
        case [first, *_] if first:
            found.append(first)
    return [each for each in found if each]
'''


def keep(path: Path) -> None:
    run_fresh(
        """
        import sys
        from pathlib import Path
        from tests.support.probed_code import keep_all
        keep_all([Path(sys.argv[1])])
        """,
        path,
    )


def files_of(loader_type: Any, probes: Any, path: Path, *, rounds: int) -> dict[str, Any]:
    """Import the module with probes, run it, and return Slipcover's report."""
    module = ModuleType("sampled")
    loader_type(probes, SourceFileLoader("sampled", str(path)), str(path)).exec_module(module)
    for _ in range(rounds):
        assert module.walk([0, 1, 4]) == ["end", 10, "small", "end", 2, "large", "end", "else"]
        assert module.walk([], [7]) == ["else", 7]
    probes.deinstrument_seen()
    assert module.walk([1]) == [10, "small", "end", "else"]
    assert module.walk.__code__.co_filename == str(path)
    files: dict[str, Any] = probes.get_coverage()["files"]
    return files


@pytest.mark.parametrize("rounds", [1, 20])
def test_it_measures_as_slipcover_does_with_and_without_removed_probes(rounds: int, tmp_path: Path) -> None:
    path = tmp_path / "sampled.py"
    path.write_text(CODE)
    expected = files_of(_importer.SlipcoverLoader, _slipcover.Slipcover(branch=True), path, rounds=rounds)
    (of_file,) = expected.values()
    assert min(len(of_file[name]) for name in ("executed_lines", "executed_branches", "missing_branches")) > 1
    assert files_of(Loader, Probes(removed_after=5), path, rounds=rounds) == expected
    keep(path)
    assert kept(path) is not None
    assert files_of(Loader, Probes(removed_after=5), path, rounds=rounds) == expected


def test_no_probe_of_a_reached_line_stays(tmp_path: Path) -> None:
    path = tmp_path / "sampled.py"
    path.write_text(CODE)
    probes, signalled = Probes(removed_after=1000), list[str]()
    module = ModuleType("sampled")
    Loader(probes, SourceFileLoader("sampled", str(path)), str(path)).exec_module(module)
    module.walk([0, 1, 4])
    probes.deinstrument_seen()

    def note(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call" and frame.f_code.co_filename == str(path):
            signalled.append(f"{frame.f_code.co_name} {getattr(function, '__name__', function)}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        module.walk([0, 1, 4])
    finally:
        sys.setprofile(before)
    assert "walk len" in signalled
    assert [each for each in signalled if "signal" in each] == []
    assert module.unused() == 1


def test_code_of_a_changed_or_damaged_file_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "sampled.py"
    path.write_text(CODE)
    assert kept(path) is None
    keep(path)
    (file,) = (tmp_path / "__pycache__").iterdir()
    whole = file.read_bytes()
    for size in (0, 5, len(whole) // 2):
        file.write_bytes(whole[:size])
        assert kept(path) is None
    file.write_bytes(whole)
    assert kept(path) is not None
    path.write_text(CODE + "\n")
    assert kept(path) is None
