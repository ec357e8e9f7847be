"""The shell's completion without the commands: what a table of them and the names in the cache answer.

What is out of the ordinary (a word with ``=``, ``--``, an unknown option) is left to the commands themselves, which
take half a second to be imported. The shells' scripts are typer's, and so is what they expect to be answered.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tieredstore.cli import completion
from tieredstore.cli.completion_table import CommandRow, ParameterRow, kept_table

ASKED: Final = "_TIEREDSTORE_COMPLETE"
"""The variable of the environment by which a shell asks."""

_COMPLETERS: Final[Mapping[str, Callable[[Any, str], list[str]]]] = {
    function.__name__: function
    for function in (completion.complete_topic, completion.complete_partition, completion.complete_offset)
}


class _OutOfTheOrdinaryError(Exception):
    """The commands themselves have to answer."""


class Offer(NamedTuple):
    """A word for the shell, and what it is."""

    word: str
    help: str = ""


def quick_answer(environment: Mapping[str, str]) -> int | None:
    """Answer the shell on stdout, and give the exit code; None where the commands themselves have to."""
    try:
        answer = _answer(environment)
    except Exception:  # noqa: BLE001  whatever it is, the long way tells
        return None
    text, code = answer
    sys.stdout.write(text + "\n" if text is not None else "")
    return code


def _answer(environment: Mapping[str, str]) -> tuple[str | None, int]:
    table = kept_table()
    shell = environment[ASKED].removeprefix("complete_")
    if table is None or shell not in _SHELLS:
        raise _OutOfTheOrdinaryError
    if shell == "bash":
        words, at = _split(environment["COMP_WORDS"]), int(environment["COMP_CWORD"])
        complete, incomplete = words[1:at], words[at] if at < len(words) else ""
    else:
        line = environment.get("_TYPER_COMPLETE_ARGS", "")
        words = _split(line)[1:]
        complete, incomplete = (words, "") if not words or line.endswith(" ") else (words[:-1], words[-1])
    return _SHELLS[shell](offers(table, complete, incomplete), environment)


def offers(table: CommandRow, words: Sequence[str], incomplete: str) -> list[Offer]:
    """What may stand for ``incomplete`` behind ``words``."""
    if "--" in words or any("=" in word for word in (*words, incomplete)):
        raise _OutOfTheOrdinaryError
    command, rest = _command(table, words)
    line = _Line.of(command, rest)
    if incomplete.startswith("-"):
        return _options(line, incomplete)
    if command["is_group"]:
        return [Offer(name, row["help"]) for name, row in command["commands"].items() if name.startswith(incomplete)]
    if line.pending is not None:
        return _values(line.pending, line, incomplete)
    arguments = (each for each in command["parameters"] if not each["names"])
    expected = next((each for each in arguments if each["is_many"] or each["parameter"] not in line.given), None)
    return [] if expected is None else _values(expected, line, incomplete)


def _command(table: CommandRow, words: Sequence[str]) -> tuple[CommandRow, Sequence[str]]:
    """The command that is named, and the words behind its name."""
    command = table
    while command["is_group"] and words:
        name, words = words[0], words[1:]
        if name in command["commands"]:
            command = command["commands"][name]
        elif name not in {"-v", "--verbose"}:
            raise _OutOfTheOrdinaryError
    return command, words


class _Line(NamedTuple):
    """What was typed behind a command; ``pending`` is an option whose value is next."""

    command: CommandRow
    given: Mapping[str, str | list[str]]
    pending: ParameterRow | None

    @classmethod
    def of(cls, command: CommandRow, words: Sequence[str]) -> _Line:
        options = {name: each for each in command["parameters"] for name in each["names"]}
        arguments = [each["parameter"] for each in command["parameters"] if not each["names"]]
        given: dict[str, str | list[str]] = {}
        ahead = iter(words)
        for word in ahead:
            if not word.startswith("-"):
                if arguments:
                    given[arguments.pop(0)] = word
                continue
            option = options.get(word)
            if option is None:
                raise _OutOfTheOrdinaryError
            value = next(ahead, None) if option["takes_value"] else ""
            if value is None:
                return cls(command, given, option)
            before = given.get(option["parameter"], [])
            given[option["parameter"]] = [*before, value] if option["is_many"] else value
        return cls(command, given, None)


def _options(line: _Line, incomplete: str) -> list[Offer]:
    free = (each for each in line.command["parameters"] if each["is_many"] or each["parameter"] not in line.given)
    return [Offer(name, each["help"]) for each in free for name in each["names"] if name.startswith(incomplete)]


def _values(parameter: ParameterRow, line: _Line, incomplete: str) -> list[Offer]:
    words: Iterable[str] = parameter["choices"]
    if parameter["completer"] is not None:
        context = SimpleNamespace(params=line.given, args=())
        words = _COMPLETERS[parameter["completer"]](context, incomplete)
    return [Offer(word) for word in words if word.startswith(incomplete)]


def _split(line: str) -> list[str]:
    """As the shell would, with a quote that is still open as what it is so far."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def _for_bash(offered: Sequence[Offer], _environment: Mapping[str, str]) -> tuple[str, int]:
    return "\n".join(offer.word for offer in offered), 0


def _for_zsh(offered: Sequence[Offer], _environment: Mapping[str, str]) -> tuple[str, int]:
    def escaped(text: str) -> str:
        text = text.replace('"', '""').replace("'", "''").replace("$", "\\$").replace("`", "\\`")
        return text.replace(":", r"\\:")

    lines = [
        f'"{escaped(offer.word)}":"{escaped(offer.help)}"' if offer.help else f'"{escaped(offer.word)}"'
        for offer in offered
    ]
    return "_arguments '*: :(({}))'".format("\n".join(lines)) if lines else "_files", 0


def _for_fish(offered: Sequence[Offer], environment: Mapping[str, str]) -> tuple[str | None, int]:
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return None, 0 if offered else 1
    lines = (f"{offer.word}\t{' '.join(offer.help.split())}" if offer.help else offer.word for offer in offered)
    return "\n".join(lines), 0


_SHELLS: Final[Mapping[str, Callable[[Sequence[Offer], Mapping[str, str]], tuple[str | None, int]]]] = {
    "bash": _for_bash,
    "zsh": _for_zsh,
    "fish": _for_fish,
}
