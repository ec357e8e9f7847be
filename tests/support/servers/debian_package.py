"""Debian's packages, unpacked without installing them: no service starts, and nothing else changes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from scripts.caches import cached
from tests.support.servers.process import ServerFailedError


def debian_package(name: str) -> Path:
    """Return the folder of an unpacked package of this machine's Debian or Ubuntu release, downloaded only once."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ServerFailedError(f"{program} is missing: these tests take {name} from Debian's packages")

    def unpack(folder: Path) -> None:
        # Run apt's download as root, because apt's own user could not write into the folder.
        download = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name]
        subprocess.run(download, cwd=folder, check=True, timeout=600)
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, "."], cwd=folder, check=True, timeout=600)
        package.unlink()

    return cached(f"debian-{name}", unpack)


def debian_tree(suite: str, architecture: str, *packages: str) -> Path:
    """Return a folder with these packages of a release (``suite``) and processor, and all packages that they need."""
    if shutil.which("mmdebstrap") is None:
        raise ServerFailedError(f"packages of {suite} for {architecture} need mmdebstrap: apt-get install mmdebstrap")

    def unpack(folder: Path) -> None:
        options = ["--quiet", "--variant=extract", "--format=directory", f"--architectures={architecture}"]
        # No program of the packages is run, so they may be for another processor.
        options += ["--skip=check/qemu", f"--include={','.join(packages)}"]
        subprocess.run(["mmdebstrap", *options, suite, folder], check=True, timeout=1200)

    return cached(f"debian-{suite}-{architecture}-{'-'.join(packages)}", unpack)
