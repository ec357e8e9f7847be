"""Each row of the tables of what is promised names the tests that show it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("document", ["pubsub", "broker"])
def test_each_row_names_a_test_that_there_is(document: str) -> None:
    lines = (REPOSITORY / "docs" / f"{document}.md").read_text().splitlines()
    begin = lines.index("| when | then | shown by |") + 2
    rows = [line for line in lines[begin : begin + 30] if line.startswith("| ")]
    assert len(rows) >= 8
    for row in rows:
        named = re.findall(r"`([a-z_/]+)::([a-z_0-9]+)`", row.rsplit("|", 2)[1])
        assert named, row
        for module, test in named:
            tree = ast.parse((REPOSITORY / "tests" / "pubsub" / f"{module}.py").read_text())
            assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, row
