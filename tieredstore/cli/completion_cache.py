"""What was last learned of a bucket for the shell's completion, in the user's cache folder: names, and no secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias, cast

from tieredstore.redaction import redacted

Names: TypeAlias = tuple[str, ...]

_MOST_FILES: Final = 200
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CachedNames:
    """An answer, and for how long it has been one."""

    names: Names
    age_s: float


@dataclass(frozen=True, slots=True)
class CompletionCache:
    """The answers about one bucket: files in ``folder`` whose names tell nothing, for this user's eyes alone."""

    folder: Path
    bucket: str

    @classmethod
    def of_user(cls, settings: str | None, store: str | None) -> Self:
        """The bucket of a settings file, as it is now, and of a URL, whose credentials are left out."""
        parts: list[object] = [None if store is None else redacted(store), str(Path.cwd())]
        if settings is not None:
            path = Path(settings).resolve()
            known = path.stat()
            parts += [path, known.st_mtime_ns, known.st_size]
        return cls.of(repr(parts))

    @classmethod
    def of(cls, subject: str) -> Self:
        """The answers about anything else."""
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(root / "tieredstore" / "completion", subject)

    def read(self, question: str) -> CachedNames | None:
        """The last answer to a question; None where there is none, or none that this user wrote."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            with self._path(question).open("rb") as file:
                known = os.fstat(file.fileno())
                if known.st_uid != os.getuid() or not stat.S_ISREG(known.st_mode):
                    return None
                content: object = json.loads(file.read(_MOST_BYTES))
            if isinstance(content, list) and all(isinstance(name, str) for name in cast("list[object]", content)):
                return CachedNames(tuple(cast("list[str]", content)), max(0.0, time.time() - known.st_mtime))
        return None

    def write(self, question: str, names: Names) -> None:
        """Keep an answer, whole or not at all; the oldest ones go where there are too many."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=self.folder)
        try:
            with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123  a descriptor
                json.dump(names, file)
            Path(draft).replace(self._path(question))
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        self._remove_oldest()

    def _path(self, question: str) -> Path:
        return self.folder / hashlib.sha256(f"{self.bucket}\n{question}".encode()).hexdigest()

    def _remove_oldest(self) -> None:
        files = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MOST_FILES:]:
            path.unlink(missing_ok=True)
