"""The Containerfile: stages and extras exist; in soak its steps are replayed in a chroot, measured and run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

from scripts.caches import cached, recipe_key
from tests.support.paths import REPOSITORY

CONTAINERFILE: Final = REPOSITORY / "Containerfile"
_BASE: Final = "docker.io/library/debian:{}-slim"
# Folders that Debian's slim images leave out.
_SLIM: Final = ("doc/*", "info/*", "lintian/*", "linda/*", "locale/*", "man/*", "groff/*")
_BUILD: Final = """
mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/run" &&
cp "$1" "$0/run/ca.crt" && cp /etc/resolv.conf "$0/etc/resolv.conf" && shift && exec chroot "$0" "$@"
"""
_RUN: Final = """
mount --bind "$0" "$0" && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&
touch "$0/etc/hosts" && mount --bind /etc/hosts "$0/etc/hosts" &&
for volume in $VOLUMES; do mount --bind "${volume%%:*}" "$0${volume##*:}" || exit 125; done &&
mount -o remount,ro,bind "$0" && exec chroot --userspec "$IMAGE_USER" "$0" "$@"
"""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_S: Final = 1800


@dataclass
class Stage:
    """One stage of the Containerfile: its base image, and its instructions."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


@dataclass(frozen=True)
class Image:
    """An image's unpacked files, and how it starts."""

    root: Path
    user: str
    environment: Mapping[str, str]
    entrypoint: list[str]

    @property
    def size(self) -> int:
        """Total bytes of all files. A file with several hard links counts once."""
        files = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                found = Path(folder, name).lstat()
                files[found.st_ino] = found.st_size
        return sum(files.values())

    def run(
        self, *words: str, volumes: Mapping[Path, str] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the image: as its user, with a read-only root and these writable folders."""
        volumes = volumes or {}
        for target in volumes.values():
            (self.root / target[1:]).mkdir(parents=True, exist_ok=True)
        mounts = " ".join(f"{source}:{target}" for source, target in volumes.items())
        inside = [f"{name}={text}" for name, text in self.environment.items()]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", _RUN, self.root, "env", "-i", *inside, *self.entrypoint, *words],
            env={**os.environ, "VOLUMES": mounts, "IMAGE_USER": self.user},
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip


def stages_of(text: str) -> dict[str, Stage]:
    """Return the stages by name. The empty name has the arguments before the first stage."""
    stages = {"": Stage("")}
    name = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = Stage(base)
        else:
            stages[name].steps.append((word, rest))
    return stages


class Replay:
    """Builder of the Containerfile's images below ``folder``. Stages that do not use the extras are built once."""

    def __init__(self, folder: Path) -> None:
        self._stages = stages_of(CONTAINERFILE.read_text())
        (self._base,) = (rest.partition("=")[2] for word, rest in self._stages[""].steps if word == "ARG")
        self._folder = folder
        self._built: dict[str, Image] = {}

    def image(self, name: str, extras: str | None = None) -> Image:
        """Return the image of a stage; build it if it is missing."""
        key = f"{name}-{extras}" if self._knows_extras(name) else name
        if key not in self._built:
            self._built[key] = self._build(name, self._folder / key, extras)
        return self._built[key]

    def _knows_extras(self, name: str) -> bool:
        stage = self._stages[name]
        froms = [stage.base, *(rest.split()[0].removeprefix("--from=") for word, rest in stage.steps if word == "COPY")]
        return any(word == "ARG" for word, _ in stage.steps) or any(
            each in self._stages and self._knows_extras(each) for each in froms
        )

    def _build(self, name: str, root: Path, extras: str | None) -> Image:
        stage = self._stages[name]
        if stage.base in self._stages:
            base = self.image(stage.base, extras)
            subprocess.run(["cp", "-a", base.root, root], check=True, timeout=_TIMEOUT_S)
        else:
            root.mkdir(parents=True)
            tarball = base_tarball(stage.base.replace("${BASE}", self._base))
            subprocess.run(["tar", "-xf", tarball, "-C", root], check=True, timeout=_TIMEOUT_S)
            base = Image(root, "0:0", {"PATH": _PATH}, [])
        user, environment, entrypoint = base.user, dict(base.environment), base.entrypoint
        arguments: dict[str, str] = {}
        for word, rest in stage.steps:
            if word == "RUN":
                self._run(root, rest, {**arguments, **environment})
            elif word == "ARG":
                argument, _, default = rest.partition("=")
                assert argument == "EXTRAS"
                arguments[argument] = extras or default
            elif word == "COPY":
                self._copy(root, rest.split(), extras)
            elif word == "ENV":
                environment |= dict(part.split("=", 1) for part in shlex.split(rest))
            elif word == "USER":
                user = rest
            elif word == "ENTRYPOINT":
                entrypoint = json.loads(rest)
            else:
                raise AssertionError(f"{word} is not replayed")
        return Image(root, user, environment, entrypoint)

    def _run(self, root: Path, line: str, environment: Mapping[str, str]) -> None:
        variables = {"DEBIAN_FRONTEND": "noninteractive", "PIP_CERT": "/run/ca.crt", **environment}
        inside = [f"{name}={text}" for name, text in variables.items()]
        authorities = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", _BUILD, root, authorities, "env", "-i", *inside, "/bin/sh", "-c", line],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"RUN {line}\n{done.stdout[-3000:]}"

    def _copy(self, root: Path, words: list[str], extras: str | None) -> None:
        *options, source, target = words
        to = root / target[1:]
        if options:
            (option,) = options
            folder = self.image(option.removeprefix("--from="), extras).root / source[1:]
            subprocess.run(["cp", "-a", folder, to], check=True, timeout=_TIMEOUT_S)
            return
        assert source == "."
        for file in context():
            copy = to / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / file, copy, follow_symlinks=False)


def context() -> Iterator[str]:
    """Yield the files of the repository that .dockerignore does not exclude. The last matching pattern decides."""
    list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for file in listed.stdout.splitlines():
        is_left = True
        for pattern in patterns:
            if _matches(file, pattern.removeprefix("!")):
                is_left = pattern.startswith("!")
        if is_left:
            yield file


def _matches(file: str, pattern: str) -> bool:
    anywhere = pattern.removeprefix("**/")
    if anywhere != pattern:
        return any(fnmatch(part, anywhere) for part in file.split("/"))
    return fnmatch(file, pattern) or file.startswith(f"{pattern}/")


def base_tarball(image: str) -> Path:
    """Return Debian's slim image as an archive, made from packages."""
    (suite,) = re.findall(_BASE.format("(\\w+)"), image)

    def make(folder: Path) -> None:
        options = [f"--dpkgopt=path-exclude=/usr/share/{part}" for part in _SLIM]
        options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        command = ["mmdebstrap", "--quiet", "--variant=minbase", *options, suite, str(folder / "base.tar")]
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)

    return cached(f"debian-slim-{suite}-{recipe_key(*_SLIM)}", make) / "base.tar"


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
