"""The documents: names exist, examples run, and calculations are right."""

from __future__ import annotations

import base64
import builtins
import functools
import importlib
import importlib.metadata
import itertools
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from scripts.sample import SAMPLE
from scripts.toolchain import GO, JAVA, NODE
from tests.support.cli.cli_process import environment
from tests.support.paths import REPOSITORY
from tests.support.spark.spark_session import jvm_of_seconds
from tieredstore import errors
from tieredstore.backends.registry import BY_SETTING
from tieredstore.cli.app.main import app
from tieredstore.config import settings_from
from tieredstore.config.encryption import pair_id
from tieredstore.config.names import known_names
from tieredstore.config.pinterest import TABLE as PINTERESTS
from tieredstore.format.chunk_index import FixedChunkIndex, encode_chunk_sizes, unpack_chunk_sizes
from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import parse_key
from tieredstore.format.manifest import SegmentManifest
from tieredstore.model import Uuid
from tieredstore.pubsub import errors as pubsub_errors
from tieredstore.transform.encryption import DataKey, SegmentCipher

pytestmark = pytest.mark.slow

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
SHELVES = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*/*.md"), REPOSITORY / "docs" / "README.md"]
OURS = sorted(page for page in SHELVES if page.name != "CHANGELOG.md")
OF_OTHERS = {"segment.ms", "storage.notificationServerset"}  # Kafka's, and MemQ's

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_SETTING = re.compile(
    r"(?:storage|chunk|key|compression|encryption|custom|transform|fetch|upload|segment)(?:\.[\w<>]+)+"
)
_MARKED = re.compile(r"<!-- ([\w-]+)(.*?) -->\n```\n(.*?)```", re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def blocks(path: Path, language: str) -> list[str]:
    """Return the code blocks of a language, indented ones too."""
    fences = _FENCE.findall(path.read_text())
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, kind, code in fences if kind == language]


def prose(path: Path) -> str:
    """Return the document without its code blocks."""
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return the link targets of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    for link in _LINK.findall(prose(path)):
        target, _, anchor = link.partition("#")
        if target.startswith("https://"):
            continue
        destination = (path.parent / target) if target else path
        assert destination.exists(), link
        assert not anchor or anchor in anchors(destination), link


def test_the_index_leads_to_every_document() -> None:
    indexes = [REPOSITORY / "README.md", REPOSITORY / "docs" / "README.md"]
    linked = {(index.parent / link).resolve() for index in indexes for link in _LINK.findall(index.read_text())}
    assert {path.resolve() for path in DOCUMENTS} - {indexes[0].resolve()} - linked == set()


def test_pages_are_short() -> None:
    assert [name_of(page) for page in SHELVES if len(page.read_text().splitlines()) > 400] == []


def test_every_page_with_programs_is_run_by_a_test() -> None:
    """test_docs_commands.py runs the pages on the sample; every other page with programs must be named in a test."""
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("*.py"))
    pages = [page for page in SHELVES if blocks(page, "python") and not is_sample_page(page)]
    assert [name_of(page) for page in pages if f'"{page.name}"' not in tests and name_of(page) not in tests] == []


def is_sample_page(page: Path) -> bool:
    """Return True if the page mentions the sample, and so runs in a copy of it."""
    return "examples/sample" in page.read_text()


def test_the_readme_names_the_versions_that_the_scripts_ask_for() -> None:
    asked = (REPOSITORY / "scripts" / "check-prerequisites").read_text()
    pages = [page for name in ("README.md", "CONTRIBUTING.md") if (page := REPOSITORY / name).exists()]
    readme = " ".join(" ".join(page.read_text() for page in pages).split())
    versions = set(re.findall(r"Python \d[\d.]*(?= or later)", asked))
    versions |= {f"{tool.name} {tool.least}" for tool in (JAVA, NODE, GO)}
    assert len(versions) >= 4
    assert [version for version in sorted(versions) if f"{version} or later" not in readme] == []


def test_the_readme_names_the_stores_that_there_are() -> None:
    (sentence,) = re.findall(r"Stores:([^.]+)\.", (REPOSITORY / "README.md").read_text())
    assert set(_CODE.findall(sentence)) == set(BY_SETTING)


def shown_commands(path: Path) -> Iterator[list[str]]:
    """Yield the words of every command line in a document, from blocks and sentences."""
    lines = [line.removeprefix("$ ") for block in blocks(path, "console") for line in block.splitlines()]
    for text in [*lines, *_CODE.findall(prose(path))]:
        name, *words = text.split()
        if name == "tieredstore" and words and words[0] != "COMMAND" and not words[0].startswith("--"):
            yield words


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_commands_and_their_options_exist(path: Path) -> None:
    for words in shown_commands(path):
        group, rest = typer.main.get_group(app), list(words)
        options = {"--help"} | options_of(group.params)
        while rest and not rest[0].startswith("-"):
            command = group.commands[rest.pop(0)]
            options = {"--help"} | options_of(command.params)
            if not isinstance(command, TyperGroup):
                break
            group = command
        named = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)}
        assert named <= options, words


def options_of(parameters: Iterable[Any]) -> set[str]:
    return {option for parameter in parameters for option in parameter.opts}


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_settings_exist(path: Path) -> None:
    listed = [line.partition("=")[0] for block in blocks(path, "properties") for line in block.splitlines()]
    named = [text.partition("=")[0] for text in _CODE.findall(prose(path))]
    settings = [name for name in [*listed, *named] if _SETTING.fullmatch(name)]
    settings = [name for name in settings if not any(row.is_of(name) for row in PINTERESTS)]
    assert [name for name in settings if name not in known_names() | OF_OTHERS and pair_id(name) is None] == []


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_dotted_names_of_the_library_exist(path: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    groups = {*project["entry-points"], *(f"tieredstore.{kind}" for kind in ("stores", "key_sources", "queues"))}
    for name in re.findall(r"tieredstore(?:\.\w+)+", prose(path)):
        if name.endswith(".x") or name in groups:  # ``x`` stands for any module
            continue
        resolve(name.split("."))


def resolve(parts: list[str]) -> object:
    for stop in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:stop]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[stop:], module)
    raise AssertionError(".".join(parts))


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_files_of_the_repository_that_are_named_exist(path: Path) -> None:
    named = [
        text for text in _CODE.findall(prose(path)) if re.fullmatch(r"(tests|benchmarks|scripts|docs)/[\w./-]+", text)
    ]
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_errors_that_are_named_exist() -> None:
    named = set(
        re.findall(
            r"`([A-Z]\w+(?:Corrupt|Error|NotFound|NotRecorded|Exists|Unavailable|Range|Segment|TooLarge))`",
            text_of_all(),
        )
    )
    assert {"MessageCorruptError", "DataLossError"} <= named
    assert named - vars(errors).keys() - vars(pubsub_errors).keys() - vars(builtins).keys() == set()


def text_of_all() -> str:
    return "".join(path.read_text() for path in OURS)


def test_the_settings_for_a_second_key_pair_use_both() -> None:
    (block,) = blocks(REPOSITORY / "docs" / "how-to" / "keys.md", "properties")
    lines = dict(line.split("=", 1) for line in block.splitlines())
    encryption = settings_from({"storage.backend.class": "memory", "chunk.size": "1"} | lines).encryption
    assert encryption is not None
    assert encryption.key_pair_id == "key2"
    assert {pair.id for pair in encryption.key_pairs} == {"key1", "key2"}


# Examples run.


def installed(**more: str) -> dict[str, str]:
    """Return the environment of a process that finds the installed package, not this folder.

    This needs the editable install that `make` makes.
    """
    (recorded,) = importlib.metadata.Distribution.discover(name="tieredstore", path=[sysconfig.get_path("purelib")])
    origin = json.loads(recorded.read_text("direct_url.json") or "{}")
    assert origin["dir_info"]["editable"]
    return {name: value for name, value in environment(**more).items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}


@pytest.mark.soak  # in `make test` the program runs in a session (test_docs_spark.py), and the demo's in a process
def test_the_readmes_query_runs_in_any_folder_by_a_python_that_is_not_on_the_path(tmp_path: Path) -> None:
    (code,) = [code for code in blocks(REPOSITORY / "README.md", "python") if "spark" in code]
    shutil.copytree(SAMPLE, tmp_path / "sample")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "sample",
        capture_output=True,
        text=True,
        env=installed(SPARK_LOCAL_IP="127.0.0.1", **jvm_of_seconds(tmp_path)),
        check=False,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert "only showing top 20 rows" in done.stdout
    assert "720 records, a task for each segment" in done.stdout


# Calculations are right.

FORMAT = (REPOSITORY / "docs" / "reference" / "format.md").read_text()


def example(kind: str) -> tuple[str, str]:
    """Return the arguments and the text of the one example marked with ``kind``."""
    ((_, arguments, text),) = [marked for marked in _MARKED.findall(FORMAT) if marked[0] == kind]
    return arguments.strip(), text


def hex_of(text: str) -> bytes:
    """Return the bytes at the start of each line, before their explanation."""
    return b"".join(bytes.fromhex(line.split("   ")[0].split("  ")[0]) for line in text.splitlines())


def test_the_key_of_the_example_says_what_the_text_says() -> None:
    (text,) = re.findall(r"^(eu/\S+)$", FORMAT, re.MULTILINE)
    key = parse_key("eu/", text)
    assert key is not None
    where = key.segment_id.topic_id_partition
    assert where.topic_id.bytes.hex() in FORMAT
    assert (where.topic, where.partition, key.start_offset) == ("page-views", 12, 4711)
    assert key.segment_id.id.bytes == b"\x01" * 16


def test_the_list_of_chunk_sizes_is_encoded_as_shown() -> None:
    arguments, text = example("chunk-sizes")
    sizes = [int(size) for size in arguments.split()]
    assert hex_of(text) == encode_chunk_sizes(sizes)
    packed_arguments, packed = example("packed-chunk-sizes")
    assert packed_arguments == arguments
    assert list(unpack_chunk_sizes(base64.b64decode(packed.strip(), validate=True))) == sizes


def test_the_manifest_of_the_example_is_read_and_written_alike() -> None:
    text = example("manifest")[1].replace("\n", "")
    manifest = SegmentManifest.from_bytes(text.encode())
    assert manifest.metadata is not None
    assert manifest.to_bytes().decode() == text
    assert f"{manifest.segment_indexes.total_size} bytes" in FORMAT


def test_the_encrypted_unit_of_the_example_opens() -> None:
    arguments, text = example("sealed")
    cipher = SegmentCipher(DataKey(bytes(range(0x20)), bytes(range(0x20, 0x40))))
    assert cipher.open(hex_of(text)) == arguments.encode()


def test_the_custom_metadata_of_the_example_is_encoded_as_shown() -> None:
    arguments, text = example("custom-metadata")
    size, prefix = arguments.split()
    assert CustomMetadata(remote_size=int(size), object_prefix=prefix).to_bytes() == hex_of(text)


def test_the_chunks_of_the_example_lie_where_the_text_says() -> None:
    index = FixedChunkIndex(1000, 2500, 1028, 528)
    places = ["{}–{}".format(*pair) for pair in itertools.pairwise(index.positions())]
    assert f"stored at {places[0]}, {places[1]} and {places[2]}" in " ".join(FORMAT.split())


def test_the_encrypted_indexes_of_the_example_add_up() -> None:
    plain = (816, 1224, 10, 8)
    sealed = [size + 28 for size in plain]
    at = [sum(sealed[:place]) for place in range(4)]
    sentence = (
        f"sizes are {sealed[0]}, {sealed[1]}, {sealed[2]} and {sealed[3]}; "
        f"they lie at {at[0]}, {at[1]}, {at[2]} and {at[3]}, and the object has {sum(sealed)} bytes"
    )
    assert sentence in " ".join(FORMAT.split())


def test_custom_metadata_of_all_fields_fills_kafkas_limit_where_the_text_says() -> None:
    topic, partition, prefix = "t" * 30, "3", "p" * 15
    path = f"{topic}-{Uuid(bytes(16))}/{partition}/{0:020d}-{Uuid(bytes(16))}"
    assert len(CustomMetadata(2**30, prefix, path).to_bytes()) == 82 + len(topic + partition + prefix) == 128
