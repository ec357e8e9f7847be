"""The source distribution of the last commit, with the same bytes for the same commit.

    python -m scripts.sdist FOLDER

The Makefile calls it for `make sdist` and `make wheel`.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from scripts.environment import ROOT

_EXECUTABLE: Final = 0o100


def main() -> None:
    """Write the archive into the folder that the command line names."""
    print(write_sdist(ROOT, Path(sys.argv[1])))


def write_sdist(repository: Path, folder: Path) -> Path:
    """Pack the last commit of ``repository`` into ``folder``; return the archive.

    Pack an export of the commit, so that files that earlier builds left in the working tree are not packed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree, packed = Path(scratch, "tree"), Path(scratch, "packed")
        tree.mkdir()
        subprocess.run(("tar", "-x", "-C", tree), input=_git(repository, "archive", "HEAD"), check=True)
        command = (sys.executable, "setup.py", "-q", "sdist", "--formats", "tar", "--dist-dir", packed)
        subprocess.run(command, cwd=tree, check=True)
        (archive,) = packed.iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{archive.name}.gz"
        target.write_bytes(gzip.compress(_uniform(archive, commit_time(repository)), mtime=0))
    return target


def commit_time(repository: Path) -> int:
    """Return ``SOURCE_DATE_EPOCH``, or the time of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git(repository, "log", "-1", "--format=%ct"))


def _uniform(archive: Path, time: int) -> bytes:
    """Return the tar file with its members sorted, and without any trace of the machine that packed it."""
    uniform = io.BytesIO()
    with tarfile.open(archive) as files, tarfile.open(fileobj=uniform, mode="w", format=tarfile.PAX_FORMAT) as sorted_:
        for member in sorted(files.getmembers(), key=lambda each: each.name):
            is_program = member.isdir() or bool(member.mode & _EXECUTABLE)
            member.mtime, member.mode = time, 0o755 if is_program else 0o644
            member.uid, member.gid, member.uname, member.gname, member.pax_headers = 0, 0, "", "", {}
            sorted_.addfile(member, files.extractfile(member))
    return uniform.getvalue()


def _git(repository: Path, *words: str) -> bytes:
    return subprocess.run(("git", *words), cwd=repository, check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    main()
