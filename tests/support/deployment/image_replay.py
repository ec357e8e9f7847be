"""The steps of the Containerfile, replayed in a chroot of Debian's packages, because no image registry is available.

This needs root, for the chroot and its mounts. Each step has its own mount namespace.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

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
