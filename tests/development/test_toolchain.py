"""Java, Node.js and Go: the machine's own if suitable; otherwise pinned wheels, and errors without them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from examples import demo
from scripts import toolchain
from scripts.environment import LOCKS
from scripts.steps import SetupError
from scripts.toolchain import GO, JAVA, NODE, Tool, located, missing, version_of

TOLD = {JAVA: 'openjdk version "{0}.0.2" 2026-01-20', NODE: "v{0}.1.2", GO: "go version go1.{0}.8 linux/amd64"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine with only this folder's programs, and a virtual environment without wheels of tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    monkeypatch.setattr(toolchain, "VENV", tmp_path / "venv")
    monkeypatch.setenv("PATH", str(folder))
    for name in ("JAVA_HOME", "CI"):
        monkeypatch.delenv(name, raising=False)
    write_program(folder / "npm", "")
    return folder


def write_program(path: Path, output: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("tool", "least"), [(JAVA, 17), (NODE, 20), (GO, 24)], ids=lambda value: str(value)[:20])
def test_the_machines_own_is_taken_if_it_is_new_enough(tool: Tool, least: int, machine: Path) -> None:
    assert located(tool) is None
    program = write_program(machine / tool.command, TOLD[tool].format(least))
    assert located(tool) == program
    write_program(program, TOLD[tool].format(least - 1))
    assert located(tool) is None


def test_java_8_tells_its_version_in_another_way(machine: Path) -> None:
    assert version_of(JAVA, write_program(machine / "java", 'java version "1.8.0_392"')) == (1, 8)


def test_a_wheels_comes_first(machine: Path, tmp_path: Path) -> None:
    write_program(machine / "node", "v22.0.0")
    wheel = write_program(tmp_path / "venv" / "bin" / "node", "v24.0.0")
    assert located(NODE) == wheel


def test_a_node_without_npm_does_not_fit(machine: Path) -> None:
    write_program(machine / "node", "v22.0.0")
    (machine / "npm").unlink()
    assert located(NODE) is None


def test_java_is_the_one_that_spark_asks(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(machine / "java", TOLD[JAVA].format(21))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert located(JAVA) is None
    program = write_program(tmp_path / "home" / "bin" / "java", TOLD[JAVA].format(17))
    assert located(JAVA) == program


def test_where_java_is_a_wheel_spark_does_not_see_the_one_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/too/old")
    assert toolchain.environment()["JAVA_HOME"] == "/too/old"
    write_program(tmp_path / "venv" / "bin" / "java", TOLD[JAVA].format(21))
    assert "JAVA_HOME" not in toolchain.environment()
    assert toolchain.environment()["PATH"].split(os.pathsep)[0] == str(tmp_path / "venv" / "bin")


def test_the_wheels_java_is_started_with_all_options_but_the_one_that_it_lacks(tmp_path: Path) -> None:
    program = tmp_path / "a folder" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "<%s>" "$JAVA_HOME" "$@"\n')
    program.chmod(0o755)
    toolchain.LINKS[JAVA](program)
    options = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=jdk.net", "Main", "*", "'x'"]
    shown = subprocess.run(
        [tmp_path / "venv" / "bin" / "java", *options], capture_output=True, text=True, check=True
    ).stdout
    assert shown == f"<{tmp_path / 'venv'}><-Da=b c><><--add-modules=jdk.net><Main><*><'x'>"


def without_wheel(tool: Tool) -> Path:
    if tool is JAVA:
        raise SetupError(missing(tool))
    return Path(tool.command)


@pytest.mark.parametrize("purpose", ["demo", "test"])
def test_without_java_one_line_says_so_and_the_rest_goes_on(
    purpose: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "provide", without_wheel)
    monkeypatch.setattr("sys.argv", ["toolchain", purpose])
    toolchain.main()
    first, *more = capsys.readouterr().err.splitlines()
    assert "Java 17 or later is not installed" in first
    assert "apt-get install openjdk-17-jre-headless" in first
    assert [("are skipped" in line) for line in more] == [True] * (purpose == "test")


def test_in_ci_tests_without_java_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "provide", without_wheel)
    monkeypatch.setattr("sys.argv", ["toolchain", "test"])
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SetupError, match=r"Spark or a Kafka broker .* CI runs all"):
        toolchain.main()


def test_the_demo_ends_well_without_java(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.query_with_spark(tmp_path / "store.properties", tmp_path / "spark.log")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Spark's part is left out: Java 17 or later is not installed")


def test_each_wheel_has_a_lock_of_one_package() -> None:
    for lock in (JAVA.lock, NODE.lock, GO.lock, LOCKS / "uv.lock"):
        pins = [line for line in lock.read_text().splitlines() if not line.startswith("    --hash=sha256:")]
        assert len(pins) == 1, pins
