"""A set-up prints its steps, and a failure shows its cause."""

from __future__ import annotations

import re

import pytest

from scripts.steps import SetupError, numbered, run_main


@pytest.mark.slow
def test_a_long_step_tells_what_it_is_at(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = numbered(("one", "two"), log_every_s=0.1)
    with first:
        first.run(("/bin/sh", "-c", "echo half; sleep 2; echo whole"), str.strip)
    with second:
        pass
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/2 one"
    assert any(re.fullmatch(r"    \d+ s half", line) for line in lines)
    assert lines[-3].startswith("    done in ")
    assert lines[-3].endswith(": whole")
    assert lines[-2] == "2/2 two"


def test_a_command_that_fails_is_shown_with_the_end_of_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    (step,) = numbered(("one",))
    with pytest.raises(SetupError, match="lines above say why: /bin/sh -c"), step:
        step.run(("/bin/sh", "-c", "echo this is why; exit 3"))
    shown = capsys.readouterr()
    assert "this is why" in shown.err
    assert "done" not in shown.out


def test_a_failed_set_up_ends_with_one_sentence() -> None:
    def fail() -> None:
        raise SetupError("it is so")

    with pytest.raises(SystemExit, match=r"^tieredstore: it is so$"):
        run_main(fail)
