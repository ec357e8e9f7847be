"""Commands and programs of the pages, run in the order of the page.

Commands and programs of a page that names the sample (``examples/sample``) run in a copy of the sample, and their
output is compared with the page. For pages without the sample only the commands run, on a small bucket of the pages'
topics. The commands run in forked processes, in `make soak` in new ones.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import tieredstore as ts
from scripts import sample
from tests.project.test_docs import DOCUMENTS, blocks, installed, is_sample_page, name_of
from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.cli.page_commands import forked_commands_of_pages
from tests.support.examples import SOAK
from tests.support.paths import REPOSITORY
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.segments import build_segment

ELSEWHERE = ("s3://", "gs://", "az://", "--kms", "broker", "tieredstore restore ")
"""Words of commands that need more than a folder and its segments."""

PARTITIONS = [*(("orders", number) for number in (0, 4, 5, 6, 7)), ("events", 3)]
FIRST_OFFSET = 249_950  # a little less than the offset at which removals by the pages' commands end
JANUARY_MS, FEBRUARY_MS = 1_767_225_600_000, 1_769_904_000_000


def commands_of(path: Path) -> list[str]:
    lines = [line for block in blocks(path, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ tieredstore ")]


PAGES = [path for path in DOCUMENTS if commands_of(path) and not is_sample_page(path)]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a settings file, a store of the documents' topics, and the source log directory."""
    folder = tmp_path_factory.mktemp("documents")
    settings = write_settings(folder, {"compression.enabled": "true"})
    shutil.copy(REPOSITORY / "examples" / "prices.toml", folder)
    (folder / "backup").mkdir()
    for topic, partition in PARTITIONS:
        where, offset = TopicIdPartition(Uuid(topic.encode().ljust(16, b".")), topic, partition), FIRST_OFFSET
        for time_ms in (JANUARY_MS, FEBRUARY_MS, FEBRUARY_MS + 1):
            segment = build_segment(
                folder / "kafka-logs", 30_000, partition=where, base_offset=offset, first_timestamp_ms=time_ms
            )
            offset = segment.to_metadata(Uuid.random()).end_offset + 1
    assert tieredstore("upload", "-c", settings, folder / "kafka-logs").code == 0
    return folder


def here(command: str, folder: Path) -> list[str]:
    """Return the words of a command, with values for its placeholders."""
    if "ID" in command:
        id_of_first = tieredstore("ls", "-c", "store.properties", "orders", "-p", "all", "--json").rows[0][0][
            "segment_id"
        ]
        command = command.replace("ID", id_of_first)
    places = {
        "SETTINGS": "store.properties",
        "TOPIC": "orders",
        "PARTITION": "0",
        "BASE_OFFSET": str(FIRST_OFFSET),
        "BATCH": str(next((REPOSITORY / "tests/pubsub/golden/batches").glob("v02*"))),
        "/etc/tieredstore/keys": str(folder / "keys"),
    }
    return [places.get(word, word) for word in shlex.split(command)[1:]]


@pytest.fixture
def copied(bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the bucket, as the working directory."""
    folder = tmp_path / "documents"
    shutil.copytree(bucket, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_commands_of_a_page_run_in_their_order(path: Path, copied: Path) -> None:
    for command in commands_of(path):
        if any(words in command for words in ELSEWHERE):
            continue
        done = tieredstore(*here(command, copied))
        assert (done.code, "Traceback" in done.stderr) == (0, False), (command, done.stderr)


# Pages whose commands and programs run in a copy of the sample.

SAMPLE_PAGES = [page for page in DOCUMENTS if is_sample_page(page)]
NEEDS_MORE = (
    "://", ":9092", "pip install", "git clone", "cd examples", "--follow", "--kms", "make ", "undelete",
    "gcloud ", "az storage",
)  # fmt: skip
_FENCE = re.compile(r"^ *```(console|python|properties)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_sample_is_what_its_script_makes(tmp_path: Path) -> None:
    sample.main(tmp_path)
    made = {path.relative_to(tmp_path): path for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(sample.SAMPLE): path for path in sample.SAMPLE.rglob("*") if path.is_file()}
    assert made.keys() == kept.keys()
    # Another release of zstd may produce other bytes, so compare the records that a reader gets from the bucket.
    on_disk = [name for name in made if name.parts[0] != "bucket"]
    assert [name for name in on_disk if made[name].read_bytes() != kept[name].read_bytes()] == []
    with ts.open(tmp_path / "store.properties") as new, ts.open(sample.SAMPLE / "store.properties") as old:
        assert new.read("orders").to_arrow() == old.read("orders").to_arrow()
    assert sum(path.stat().st_size for path in kept.values()) < 300_000


@pytest.fixture(scope="module")
def forked() -> Iterator[Path]:
    with forked_commands_of_pages(installed()) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("page", SAMPLE_PAGES, ids=name_of)
def test_what_a_page_shows_runs_on_the_sample(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert {"README.md", "docs/first-steps/quickstart.md"} <= {*map(name_of, SAMPLE_PAGES)}
    folder = tmp_path / "sample"
    shutil.copytree(sample.SAMPLE, folder)
    installed_here = Path(sys.executable).parent
    first = installed_here if SOAK else request.getfixturevalue("forked")
    path = f"{first}:{installed_here}"
    for kind, text in _FENCE.findall(page.read_text()):
        code = textwrap.dedent(text)
        match kind:
            case "console":
                for command, shown in consoles_of(code):
                    if not any(words in command for words in NEEDS_MORE):
                        printed = run(["sh", "-c", f'PATH="{path}:$PATH"; {command}'], folder)
                        assert not shown or lines_of(printed) == lines_of(shown), command
            case "python" | "properties" if named := re.match(r"# (\S+\.(?:py|properties))\n", code):
                (folder / named[1]).write_text(code)
            case "python" if "spark" not in code and ":9092" not in code and "://" not in code:
                assert run([str(first / "python"), "-W", "error", "-c", code], folder), "the program prints nothing"
            case _:
                pass


def consoles_of(code: str) -> list[tuple[str, str]]:
    """Return each command of a console with its output on the page, which may be empty."""
    first, *parts = re.split(r"^\$ ", code, flags=re.MULTILINE)
    assert not first, "a console begins with a command"
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def lines_of(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=installed(), check=False, timeout=300
    )
    assert done.returncode == 0, (command[-1], done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout
