"""Hostile buckets: commands give the right answer for any change of a bucket, in bounded time and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.damage import hostile_folders, hostile_manifests, hostile_objects
from tests.support.damage.hostile_buckets import MODES, Case, HostileBucket, copy_of, make_bucket
from tests.support.work import Work, measured

pytestmark = pytest.mark.slow

CASES = [*hostile_manifests.CASES, *hostile_objects.CASES, *hostile_folders.CASES]
COMMANDS = {"ls": (), "inspect": ("victim", "0", "0"), "fetch": ("victim", "0", "0"), "cat": ("victim",)}
COSTLY = re.compile("million|MiB|GiB|chunks of a byte|90,000|100,000")
"""Cases that take about a second. Two in five of the other cases run here, all cases in `make soak`."""

MOST_CALLS = 12
"""Limit for calls, as a multiple of the command's calls on an honest bucket."""

MOST_MEMORY = 160 << 20
"""Limit in bytes. The largest manifest has 16 MiB, which become raw bytes, text, base64 and a list in turn."""

Answers = dict[str, tuple[bytes, int]]
"""Output and number of calls of each command on an honest bucket."""


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[HostileBucket, Answers]]:
    """Return a function that gives a bucket of each mode, and its right answers."""
    buckets: dict[str, tuple[HostileBucket, Answers]] = {}

    def bucket_of(mode: str) -> tuple[HostileBucket, Answers]:
        if mode not in buckets:
            bucket = make_bucket(tmp_path_factory.mktemp(mode), mode)
            answers: Answers = {}
            for command, arguments in COMMANDS.items():
                tieredstore(command, "-c", bucket.settings, *arguments)  # exclude one-time imports from the count
                with measured() as work:
                    done = tieredstore(command, "-c", bucket.settings, *arguments)
                assert (done.code, done.stderr) == (0, "")
                answers[command] = done.stdout, work.calls
            buckets[mode] = bucket, answers
        return buckets[mode]

    return bucket_of


def _measured(*arguments: object) -> tuple[Result, Work]:
    with measured() as work:
        done = tieredstore(*arguments)
    return done, work


def test_the_table_is_long_and_its_names_differ() -> None:
    assert len(CASES) >= 100
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.mode for case in CASES} == set(MODES)


def _with_marks() -> Iterator[ParameterSet]:
    for number, case in enumerate(CASES):
        is_left = number % 5 not in {0, 2} or COSTLY.search(case.name)
        yield pytest.param(case, id=case.name, marks=[pytest.mark.soak] if is_left else [])


@pytest.mark.parametrize("case", list(_with_marks()))
def test_a_hostile_bucket(case: Case, honest: Callable[[str], tuple[HostileBucket, Answers]], tmp_path: Path) -> None:
    template, answers = honest(case.mode)
    bucket = copy_of(template, tmp_path)
    case.change(bucket)
    stored = sum(path.stat().st_size for path in (bucket.folder / "store").rglob("victim-*/0/*") if path.is_file())
    said = ""
    codes: list[int] = []
    for command, arguments in {**COMMANDS, "cat": case.cat}.items():
        right, calls = answers[command]
        most_calls = MOST_CALLS * calls + case.calls_of_a_byte * stored
        done, work = _measured(command, "-c", bucket.settings, *arguments)
        if work.calls >= most_calls:  # measure again, because the first run may have imported modules
            done, work = _measured(command, "-c", bucket.settings, *arguments)
        codes.append(done.code)
        if done.code == 0 and command in {"fetch", "cat"} and case.cat == COMMANDS["cat"]:
            # Changed plain bytes cannot be detected: fetch returns them unchanged.
            stands = case.codes[3] != 0 and command == "fetch"
            assert done.stdout == (bucket.path("log").read_bytes() if stands else right)
        said += done.stderr
        assert work.peak_bytes < MOST_MEMORY
        assert work.calls < most_calls
        assert len(done.stderr) < 5_000
        assert "Traceback" not in done.stderr
        assert all(line.isprintable() for line in done.stderr.split("\n"))
        if command == "ls":
            assert b"honest" in done.stdout
    assert tuple(codes) == case.codes, said
    assert re.search(case.words, said.replace("\n", " "))
