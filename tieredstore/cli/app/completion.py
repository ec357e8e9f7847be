"""Shell completion of topics, partitions and offsets, with names from the bucket.

Reading a bucket may take long, while the shell waits. So a forked child reads the bucket and writes its answer into a
file in the user's cache folder. The command waits 0.8 s for an answer, then offers what the file contains. If there is
no answer by then, the child continues for some seconds. The next attempt then has an answer. Errors never reach the
screen.

The module ``options`` only refers to these functions. This module is separate, because completion forks and opens a
bucket.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import typer

from tieredstore.redaction import redacted

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

Names: TypeAlias = tuple[str, ...]

_WAIT_S: Final = 0.8
"""Maximum seconds that the shell waits for names from the bucket if no usable answer is stored."""

_LOOK_S: Final = 10
"""Maximum seconds that the child process runs. The child may continue after the command has ended, so that the next
attempt has an answer."""

_FRESH_S: Final = 60.0
"""The age in seconds up to which a stored answer is current. While an older answer is offered, a child reads the bucket
again."""

_OLD_S: Final = 86_400.0
"""The age in seconds after which a stored answer is offered only if reading the bucket takes too long."""

_MAX_NAMES: Final = 1000
_MAX_FILES: Final = 200
_MAX_BYTES: Final = 1 << 20
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the topics with this prefix."""
    return _offer(ctx, incomplete)


def complete_partition(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the topic's partitions. In a comma-separated list complete the last one."""
    listed, comma, last = incomplete.rpartition(",")
    topic = _topic(ctx)
    return [f"{listed}{comma}{name}" for name in _offer(ctx, last, topic)] if topic else []


def complete_offset(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the base offsets of the partition's segments. If no partition is given, use the first one."""
    topic, partition = _topic(ctx), _text(ctx, "partition", "partitions") or "0"
    return _offer(ctx, incomplete, topic, int(partition)) if topic and partition.isdecimal() else []


def _topic(ctx: typer.Context) -> str | None:
    """Return the last topic typed."""
    topics = _texts(ctx, "topic", "topics")
    # If the parser assigned no topic, use the last argument. After an option without a value, the parser assigns no
    # topic.
    return next(reversed(topics or [str(each) for each in ctx.args]), None)


def _text(ctx: typer.Context, *names: str) -> str | None:
    """Return the value of the first parameter in ``names`` that the user gave. Return None if this parameter has
    several values."""
    given = _texts(ctx, *names)
    return given[0] if len(given) == 1 else None


def _texts(ctx: typer.Context, *names: str) -> list[str]:
    for value in map(ctx.params.get, names):
        if isinstance(value, list | tuple) and value:
            return [str(each) for each in cast("Iterable[object]", value)]
        if value is not None and not isinstance(value, list | tuple):
            return [str(value)]
    return []


def _offer(ctx: typer.Context, incomplete: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """Offer names from the bucket that the options name. Offer nothing if there is no answer in time."""
    settings, store = _text(ctx, "settings") or os.environ.get("TIEREDSTORE_SETTINGS"), _text(ctx, "url", "store")
    if settings is None and store is None:
        return []

    def look() -> None:
        from tieredstore.ops.bucket import open_bucket
        from tieredstore.remote.stores import settings_of

        # This child process logs nothing, because errors must not appear while the user types. The command itself will
        # report them.
        logging.disable(logging.CRITICAL)
        with open_bucket(settings_of(settings, store=store)) as place:
            write_answer(path, legal_names(_look_up(place, topic, partition)))

    with contextlib.suppress(Exception):
        path = answer_path(settings, store, (topic, partition))
        known = read_answer(path)
        if known is None or known[1] > _FRESH_S:
            is_usable = known is not None and known[1] <= _OLD_S
            _look_in_child(look, wait_s=0 if is_usable else _WAIT_S)
            known = known if is_usable else read_answer(path) or known
        return [name for name in (known or ((),))[0] if name.startswith(incomplete)]
    return []


def _look_up(place: Bucket, topic: str | None, partition: int | None) -> Iterable[str]:
    from tieredstore.catalog import names

    until = time.monotonic() + _LOOK_S
    if topic is None:
        return names.topic_names(place.store, place.prefix, until=until)
    if partition is not None:
        return map(str, names.base_offsets(place.store, place.prefix, topic, partition, most=_MAX_NAMES, until=until))
    by_id = names.partition_numbers(place.store, place.prefix, topic, until=until)
    return map(str, sorted({number for numbers in by_id.values() for number in numbers}))


def legal_names(names: Iterable[str]) -> Names:
    """Drop names that Kafka does not allow. A bucket may contain any name, and a shell could run a command in the
    name."""
    return tuple(name for name in names if _LEGAL.fullmatch(name))[: 10 * _MAX_NAMES]


def _look_in_child(look: Callable[[], object], *, wait_s: float) -> None:
    """Call ``look`` in a child process. Wait until the child is done, but no longer than ``wait_s``."""
    looked, done = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn about a fork in a process with threads. Here the threads only wait and hold no lock, so
        # suppress the warning.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _leave_terminal()
            look()
        finally:
            # End without cleanup, because the child must not run the parent's exit handlers. Nobody needs the child's
            # errors.
            os._exit(0)
    os.close(done)
    try:
        is_done, _, _ = select.select([looked], [], [], wait_s)
    finally:
        os.close(looked)
    if is_done:
        os.waitpid(child, 0)


def _leave_terminal() -> None:
    """In the child, leave the terminal's session, discard all output, and limit the time that the child may run."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.alarm(_LOOK_S)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # Replace stdin, stdout and stderr, because the shell waits until every process has closed the shell's pipe.
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def answer_path(settings: str | None, store: str | None, question: object) -> Path:
    """Return the file that caches the answer to a question. The file's name is a hash of the question, the URL and the
    settings file."""
    from hashlib import sha256

    subject: list[object] = [None if store is None else redacted(store), str(Path.cwd()), question]
    if settings is not None:
        known = Path(settings).resolve().stat()
        subject += [Path(settings).resolve(), known.st_mtime_ns, known.st_size]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "tieredstore" / "completion" / sha256(repr(subject).encode()).hexdigest()


def read_answer(path: Path) -> tuple[Names, float] | None:
    """Return the stored names and their age in seconds. Return None if there is no answer written by this user."""
    with contextlib.suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        known = os.fstat(file.fileno())
        content: object = json.loads(file.read(_MAX_BYTES))
        is_ours = known.st_uid == os.getuid() and stat.S_ISREG(known.st_mode)
        if (
            is_ours
            and isinstance(content, list)
            and all(isinstance(name, str) for name in cast("list[object]", content))
        ):
            return tuple(cast("list[str]", content)), max(0.0, time.time() - known.st_mtime)
    return None


def write_answer(path: Path, names: Names) -> None:
    """Store an answer atomically, readable by this user only. If there are too many stored answers, delete the
    oldest."""
    import tempfile

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
        json.dump(names, draft)
    Path(draft.name).replace(path)
    files = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in files[_MAX_FILES:]:
        old.unlink(missing_ok=True)
