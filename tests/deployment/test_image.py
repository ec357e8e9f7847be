"""The Containerfile: stages and extras exist; in soak its steps are replayed in a chroot, measured and run."""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.deployment.image_replay import CONTAINERFILE, Image, Replay, context, stages_of
from tests.support.paths import REPOSITORY

SAMPLE: Final = REPOSITORY / "examples" / "sample"
STORE: Final = "storage.backend.class=filesystem\nstorage.root=/store\n"
UPLOADER: Final = f"{STORE}uploader.leadership=static\nuploader.broker.id=0\nuploader.log.dirs=/log\n"


def test_images_start_the_command_without_root() -> None:
    stages = stages_of(CONTAINERFILE.read_text())
    for name in ("tieredstore", "spark"):
        steps = dict(stages[name].steps)
        assert (steps["USER"], steps["ENTRYPOINT"]) == ("1000:1000", '["tieredstore"]')
    assert list(stages)[-1] == "tieredstore", "the last stage is the one that a build without --target makes"


def test_extras_of_the_images_exist() -> None:
    text = CONTAINERFILE.read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [word.partition("EXTRAS=")[2].split(",") for word in text.split() if "EXTRAS=" in word]
    assert len(named) == 3
    assert {each for extras in named for each in extras} <= set(project["optional-dependencies"])


def test_a_build_reads_the_package_and_no_more() -> None:
    folders = {file.partition("/")[0] for file in context() if "/" in file}
    assert folders == {"backends", "pyspark_memq", "pyspark_tieredstore", "tieredstore"}
    assert {"setup.py", "pyproject.toml", "requirements.lock", "LICENSE"} <= set(context())


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    for program in ("mmdebstrap", "unshare"):
        if os.geteuid() or shutil.which(program) is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"a chroot needs root and {program}")
    folder = tmp_path_factory.mktemp("images")
    yield Replay(folder)
    shutil.rmtree(folder)


@pytest.fixture
def volumes(tmp_path: Path) -> dict[Path, str]:
    """Return folders of the image's user: settings, a broker's log and an empty store."""
    shutil.copytree(SAMPLE / "kafka-logs", tmp_path / "log")
    for name in ("settings", "store"):
        (tmp_path / name).mkdir()
    (tmp_path / "settings" / "uploader.properties").write_text(UPLOADER)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 1000, 1000)
    return {tmp_path / name: f"/{name}" for name in ("settings", "store", "log")}


def works(image: Image, volumes: dict[Path, str]) -> None:
    """Check that the image's root is read-only, and that ``doctor`` works in the image with these volumes."""
    touch = Image(image.root, image.user, image.environment, ["touch"])
    assert "Read-only file system" in touch.run("/tmp/file").stderr
    doctor = image.run("doctor", "-c", "/settings/uploader.properties", "--write", volumes=volumes)
    assert doctor.returncode == 0, doctor
    assert "Traceback" not in doctor.stderr


def uploads(image: Image, volumes: dict[Path, str]) -> None:
    """Check that the image works, and that its uploader ships the sample's segments."""
    works(image, volumes)
    once = image.run("uploader", "-c", "/settings/uploader.properties", "--once", volumes=volumes)
    assert once.returncode == 0, once


@pytest.mark.soak
@pytest.mark.slow
def test_the_small_image_has_the_command_line(replay: Replay, volumes: dict[Path, str]) -> None:
    image = replay.image("tieredstore", "s3")
    print(f"s3: {image.size / 1e6:.0f} MB")
    assert image.size <= 250e6
    uploads(image, volumes)


@pytest.mark.soak
@pytest.mark.slow
def test_the_image_uploads_and_answers_sql(replay: Replay, volumes: dict[Path, str]) -> None:
    image = replay.image("tieredstore", "s3,uploader,query")
    print(f"s3,uploader,query: {image.size / 1e6:.0f} MB")
    assert image.size <= 500e6
    assert not list(image.root.glob("opt/tieredstore/lib/*/site-packages/polars"))
    uploads(image, volumes)
    counted = image.run(
        "query", "-c", "/settings/uploader.properties", "SELECT count(*) AS records FROM orders", volumes=volumes
    )
    assert counted.stdout.split()[-1] == "720", counted


SPARK: Final = """
import tieredstore.spark
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(tieredstore.spark.read(session, "/settings/uploader.properties", "orders").count(), "records")
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_the_image_with_spark_reads_a_bucket_in_spark(replay: Replay, volumes: dict[Path, str], tmp_path: Path) -> None:
    image = replay.image("spark", "s3,kafka,spark")
    print(f"spark: {image.size / 1e6:.0f} MB")
    works(image, volumes)
    shutil.copytree(SAMPLE / "bucket", tmp_path / "store", dirs_exist_ok=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    os.chown(scratch, 1000, 1000)
    python = Image(image.root, image.user, image.environment, ["python", "-c"])
    # Spark needs a writable folder for its own files.
    done = python.run(SPARK, volumes={**volumes, scratch: "/tmp"})
    assert done.returncode == 0, done
    assert "720 records" in done.stdout
