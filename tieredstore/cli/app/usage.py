"""Wrong usage, told as every other error is: one sentence that names the thing and the way out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import typer

from tieredstore.cli.terminal.output import complain
from tieredstore.errors import ConfigError, quoted

UsageProblem: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""What the command line's parser raises: typer names only some of the classes below it."""

_MEANT: Final[Mapping[str, str]] = {
    "check": "verify", "clean": "gc", "consumer": "consume", "convert": "export", "describe": "inspect",
    "df": "du", "diagnose": "doctor", "download": "fetch", "fsck": "verify", "get": "fetch", "list": "ls",
    "ps": "ls", "put": "copy", "read": "cat", "records": "cat", "remove": "rm", "segments": "ls", "show": "inspect",
    "size": "du", "sql": "query", "stat": "inspect", "sync": "cp", "tail": "cat --follow", "topics": "ls",
    "upload": "copy", "validate": "verify", "view": "cat",
}  # fmt: skip
"""What other tools call it."""


def tell_usage(problem: Any) -> int:
    """Say on stderr what the parser of the command line found, in our words; the exit code."""
    if type(problem).__name__ == "NoArgsIsHelpError":
        problem.show()  # the help itself
    else:
        complain(str(usage_error(problem)))
    return ConfigError.exit_code


def usage_error(problem: Any) -> ConfigError:
    """The same as an error of the library."""
    return ConfigError(_SENTENCES.get(type(problem).__name__, _other)(problem))


def no_such_command(context: Any, name: str) -> ConfigError:
    """Names the command that was meant, if one looks like it or means it."""
    there: Mapping[str, Any] = context.command.commands
    near = difflib.get_close_matches(name, there, n=1)
    meant = _MEANT.get(name, "") if not near or name in _MEANT else near[0]
    if meant.partition(" ")[0] not in there:
        meant = ""
    hint = f"; {context.command_path} {meant} is what does that" if name in _MEANT else f"; did you mean {meant}?"
    of = context.command_path.partition(" ")[2]
    return ConfigError(
        f"there is no command {quoted(f'{of} {name}'.strip())}"
        + (hint if meant else f"; {context.command_path} --help lists them")
    )


def _no_such_option(problem: Any) -> str:
    near: Sequence[str] = problem.possibilities or ()
    way_out = f"did you mean {' or '.join(near)}?" if near else f"{_path(problem)} --help lists what it has"
    return f"{_command(problem)} has no option {quoted(problem.option_name)[1:-1]}; {way_out}"


def _missing(problem: Any) -> str:
    return f"{_command(problem)} needs {_name(problem.param)}: {_usage_line(problem.ctx)}"


def _bad_value(problem: Any) -> str:
    cause: Any = problem.__cause__
    subject = "a value" if problem.param is None else _name(problem.param)
    if not hasattr(cause, "errors"):
        return f"{subject}: {_uncapitalized(problem.message)}"
    error: Mapping[str, Any] = cause.errors()[0]
    return f"{subject} is {quoted(error['input'])}: {_wanted(error)}; {_path(problem)} --help explains it"


def _wanted(error: Mapping[str, Any]) -> str:
    """What a value has to be, of one that pydantic refused."""
    kind, limits = str(error["type"]), error.get("ctx", {})
    if kind.startswith(("int", "float")):
        return "it must be a number" if kind.startswith("float") else "it must be a whole number"
    for limit, words in (("ge", "least"), ("le", "most")):
        if limit in limits:
            return f"it must be at {words} {limits[limit]}"
    if choices := re.search(r"is not one of (.+?)\.?$", str(error["msg"])):
        return f"it must be one of {choices[1].replace(chr(39), '')}"
    return _uncapitalized(str(error["msg"]).removeprefix("Value error, "))


def _bad_option(problem: Any) -> str:
    option: str = problem.option_name
    if "does not take" in problem.message:
        return f"{option} takes no value; {_path(problem)} --help explains it"
    metavar = next((each.metavar for each in problem.ctx.command.params if option in each.opts), None)
    shown = f": {option} {metavar}" if metavar else ""
    return f"{option} needs a value{shown}; {_path(problem)} --help explains it"


def _other(problem: Any) -> str:
    if surplus := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", problem.message, re.DOTALL):
        return f"{_command(problem)} has no use for {quoted(surplus[1])}: {_usage_line(problem.ctx)}"
    return _uncapitalized(problem.message)


_SENTENCES: Final[Mapping[str, Callable[[Any], str]]] = {
    "NoSuchOption": _no_such_option,
    "MissingParameter": _missing,
    "BadParameter": _bad_value,
    "BadOptionUsage": _bad_option,
}


def _path(problem: Any) -> str:
    """``tieredstore keys list``."""
    return str(problem.ctx.command_path)


def _command(problem: Any) -> str:
    """``keys list``."""
    return _path(problem).partition(" ")[2] or "tieredstore"


def _usage_line(context: Any) -> str:
    """``tieredstore fetch TOPIC PARTITION BASE_OFFSET``, with the options that must be there."""
    pieces: list[str] = context.command.collect_usage_pieces(context)
    options = [
        f"{_name(parameter)} {parameter.metavar}"
        for parameter in context.command.params
        if parameter.required and parameter.param_type_name == "option"
    ]
    return " ".join([context.command_path, *(piece for piece in pieces if piece != "[OPTIONS]"), *options])


def _name(parameter: Any) -> str:
    """``TOPIC``, ``--partition``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]{}.")
    return max(map(str, parameter.opts), key=len)


def _uncapitalized(message: str) -> str:
    return (message[:1].lower() + message[1:]).rstrip(".")
