"""The bad nights of docs/how-to/emergency.md: each disaster happens, then the commands of its section run.

The deleted topic is in tests/restore/test_undelete.py, the full disk in tests/uploader/test_failures.py.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import sample
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-to" / "emergency.md"


def commands_of(section: str) -> list[str]:
    """Return the commands of a section of the page, in order."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"^ *\$ (.*)$", text, re.MULTILINE)


def obey(commands: list[str]) -> list[Result]:
    """Run commands of the page in the working directory; those of other programs without a result."""
    done: list[Result] = []
    for command in commands:
        words = shlex.split(command.partition(">")[0])
        if words[0] == "tieredstore":
            done.append(tieredstore(*words[1:]))
        elif words[0] == "mkdir":
            Path(words[1]).mkdir()
        else:
            assert words[0] == "sed"
    return done


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a copy of the sample, and of its bucket, as the page has them on a good day."""
    shutil.copytree(sample.SAMPLE, tmp_path / "sample")
    monkeypatch.chdir(tmp_path / "sample")
    copying = commands_of("A wrong `rm`")[:3]
    assert [result.code for result in obey(copying)] == [0]
    settings = Path("store.properties").read_text()
    Path("backup.properties").write_text(settings.replace("storage.root=bucket", "storage.root=backup"))
    return tmp_path / "sample" / "bucket"


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remove_all(_: Path) -> None:
    assert tieredstore("rm", "-c", "store.properties", "orders", "--yes").code == 0


def remove_some(_: Path) -> None:
    assert tieredstore("rm", "-c", "store.properties", "orders", "-p", "0", "--to", "240", "--yes").code == 0


@pytest.mark.parametrize("remove", [remove_all, remove_some])
def test_a_wrong_rm(remove: Callable[[Path], None], stage: Path) -> None:
    before = content(stage)
    remove(stage)
    assert len(content(stage)) < len(before)
    planned, copied, verified = obey(commands_of("A wrong `rm`")[3:])
    assert "would be copied" in planned.text
    assert (copied.code, verified.code) == (0, 0)
    assert content(stage) == before


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_corrupt_segment(suffix: str, stage: Path) -> None:
    before = content(stage)
    damaged = min(stage.rglob(f"*.{suffix}"))
    damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    found, _, planned, repaired = obey(commands_of("A segment is corrupt"))
    assert found.code == 4
    assert f"would be repaired  {damaged.relative_to(stage).with_suffix('')}: .{suffix}" in planned.text
    assert repaired.code == 0
    assert content(stage) == before
    assert obey(commands_of("A segment is corrupt"))[0].code == 0


def test_a_leaked_key(stage: Path) -> None:
    encrypt, *_ = (shlex.split(command.partition(">")[0]) for command in commands_of("A private key leaked"))
    printed = tieredstore(*encrypt[1:])
    with Path("store.properties").open("a") as settings:
        settings.write(printed.stdout.decode())
    shutil.rmtree(stage)
    stage.mkdir()
    commands = commands_of("A private key leaked")
    uploaded, created = obey(commands[1:3])
    assert (uploaded.code, created.code) == (0, 0)
    settings_file = Path("store.properties")
    settings_file.write_text(settings_file.read_text().replace("key.pair.id=key1", "key.pair.id=key2"))
    assert "sed" in commands[3]
    planned, rotated, listed = obey(commands[4:7])
    assert "6 data keys would be rotated" in planned.text
    assert rotated.code == 0
    assert "key1" not in listed.text
    needed = tieredstore("keys", "list", "key1", "-c", "store.properties")
    assert (needed.code, needed.text.split()[0]) == (5, "cached")
    until = needed.text.split()[-1]
    assert f"readers need 'key1' until {until}" in rotated.text
    renewed = obey(commands[7:])
    assert [result.code for result in renewed] == [0, 0]
    assert "6 segments copied" in renewed[1].text
    fresh = tieredstore("verify", "-c", "store.properties", "--store", "fresh", "--level", "data")
    assert fresh.code == 0
