"""A process's stdout and stderr as our streams: output errors are noticed, and reported once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tieredstore.cli.terminal.streams import ReaderGoneError, StandardError, StandardOutput, StandardOutputFailedError


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_written_text_arrives(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    output = StandardOutput(writer, lambda error: pytest.fail(str(error)))
    assert (output.writable(), output.fileno(), output.isatty()) == (True, writer, False)
    assert output.write(b"words") == 5
    assert StandardError(writer).write(b"!") == 1
    assert os.read(reader, 100) == b"words!"
    assert output.exit_code == 0


def test_nobody_who_reads_is_told_once(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    failures: list[StandardOutputFailedError] = []
    output = StandardOutput(writer, failures.append)
    with pytest.raises(ReaderGoneError):
        output.write(b"words")
    assert output.write(b"more") == 4
    assert len(failures) == 1
    assert output.exit_code == ReaderGoneError.exit_code == 141
    complaints = StandardError(writer)
    assert complaints.write(b"words") == 5
    assert complaints.exit_code == 1


def test_a_full_disk_and_a_closed_stream_are_sentences() -> None:
    failures: list[StandardOutputFailedError] = []
    with Path("/dev/full").open("wb", buffering=0) as full:
        output = StandardOutput(full.fileno(), failures.append)
        with pytest.raises(StandardOutputFailedError, match="cannot be written: No space left"):
            output.write(b"words")
    with Path(os.devnull).open("rb") as unwritable:
        with pytest.raises(StandardOutputFailedError, match="it is closed"):
            StandardOutput(unwritable.fileno(), failures.append).write(b"words")
        assert StandardError(unwritable.fileno()).write(b"lost") == 4
    assert len(failures) == 2


def test_a_pipe_that_is_full_and_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    filled = 0
    try:
        while True:
            filled += os.write(writer, b"x" * 65536)
    except BlockingIOError:
        pass
    child = os.fork()
    if not child:
        left = filled
        while left:
            left -= len(os.read(reader, left))
        os._exit(0)
    assert StandardOutput(writer, lambda error: pytest.fail(str(error))).write(b"words") == 5
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"words"
