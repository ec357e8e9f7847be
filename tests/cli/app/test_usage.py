"""Wrong usage is told as everything else is: one sentence on stderr, and exit code 2. Its words: screens/usage.txt."""

from __future__ import annotations

import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.cli.screens import all_commands

COMMANDS = all_commands()


@pytest.mark.parametrize("arguments", [(), ("--no-such-option",), ("-Z",), ("--no-such-option=1", "a", "b", "c", "d")])
@pytest.mark.parametrize("command", ["", "keys", "holds", *COMMANDS])
def test_it_is_one_sentence(command: str, arguments: tuple[str, ...]) -> None:
    if not arguments and command not in {"cat", "fetch", "keys new", "keys seal"}:
        return  # the help, or a command that needs nothing
    done = tieredstore(*command.split(), *arguments)
    assert (done.code, done.text) == (2, "")
    assert done.stderr.startswith(f"tieredstore: {command or 'tieredstore'} ")
    assert done.stderr.count("\n") == 1
    assert "Error" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fetch", "t", "b", "0"), "PARTITION is 'b': it must be a whole number"),
        (("cat", "t", "-n", "0"), "-n is '0': it must be at least 1"),
        (("cat", "t", "-n"), "-n needs a value: -n N"),
        (("verify", "--parallel", "300"), "--parallel is '300': it must be at most 256"),
        (("verify", "--level", "all"), "--level is 'all': it must be one of listing, index, data"),
        (("keys", "seal", "k"), "keys seal needs --kms: tieredstore keys seal ID --kms NAME --kms-key KEY"),
        (("keys", "lst"), "there is no command 'keys lst'; did you mean list?"),
        (("copy",), "there is no command 'copy'; tieredstore upload is what does that"),
        (("delete",), "there is no command 'delete'; tieredstore rm is what does that"),
        (("export",), "there is no command 'export'; tieredstore cat -o is what does that"),
        (("consume",), "there is no command 'consume'; tieredstore cat --group is what does that"),
        (("cat", "t", "--data-loss", "report"), "cat has no option --data-loss"),
        (("x" * 1000,), "(1000 characters)"),
        (("inspect", "a", "0", "0", "\x1b[2J"), r"inspect has no use for"),
        (("ls", "--\x1b[2J"), "ls has no option"),
        (("nonsense",), "there is no command 'nonsense'"),
        (("fetch",), "fetch needs TOPIC"),
    ],
)
def test_it_names_the_thing_and_the_way_out(arguments: tuple[str, ...], sentence: str) -> None:
    done = tieredstore(*arguments)
    assert done.code == 2
    assert sentence in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 300
