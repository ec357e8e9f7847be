"""Bytecode of modules, made before the workers of a run start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bytecode import make_bytecode


def kept_beside(path: Path) -> bytes:
    (kept,) = (path.parent / "__pycache__").iterdir()
    return kept.read_bytes()


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_it_is_made_once_and_again_after_a_change(is_rewritten: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text("def test_one() -> None:\n    assert [] == [1]\n")
    make_bytecode(path, is_rewritten)
    made = kept_beside(path)
    assert (b"@pytest_ar" in made) == is_rewritten
    make_bytecode(path, is_rewritten)
    assert kept_beside(path) == made
    path.write_text("def test_one() -> None:\n    assert [] == [1, 2]\n")
    os.utime(path, (1, 1))  # Python compares whole seconds
    make_bytecode(path, is_rewritten)
    assert kept_beside(path) != made


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_module_with_a_wrong_syntax_is_left_to_its_import(is_rewritten: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text("def test_one(\n")
    make_bytecode(path, is_rewritten)
    assert [each.name for each in path.parent.rglob("*.py*")] == [path.name]
