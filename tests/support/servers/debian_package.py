"""Programs of Debian's packages, unpacked without being installed: no service starts, nothing else changes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from scripts.caches import cached
from tests.support.servers.process import ServerFailedError


def debian_package(name: str) -> Path:
    """Return the folder of an unpacked package: downloaded once, in this machine's release of Debian or Ubuntu."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise ServerFailedError(f"{program} is missing: these tests take {name} from Debian's packages")

    def unpack(folder: Path) -> None:
        # As a user of its own, apt could not write into the folder.
        download = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name]
        subprocess.run(download, cwd=folder, check=True, timeout=600)
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, "."], cwd=folder, check=True, timeout=600)
        package.unlink()

    return cached(f"debian-{name}", unpack)
