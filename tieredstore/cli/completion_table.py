"""The commands and their options as a table, so that the shell's completion need not import them to know them.

It is made out of the commands themselves, lies in the user's cache folder, and is made again when a file of the command
line has changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from tieredstore.cli.completion_cache import CompletionCache

_QUESTION: Final = "commands"


class ParameterRow(TypedDict):
    """An option, or an argument: then there are no ``names``."""

    parameter: str
    names: list[str]
    takes_value: bool
    is_many: bool
    help: str
    choices: list[str]
    completer: str | None


class CommandRow(TypedDict):
    """A command, or a group of them."""

    help: str
    is_group: bool
    parameters: list[ParameterRow]
    commands: dict[str, CommandRow]


def kept_table() -> CommandRow | None:
    """The table as it was kept; None where there is none of these very commands."""
    answer = _cache().read(_QUESTION)
    return None if answer is None else cast("CommandRow", json.loads("".join(answer.names)))


def keep_table(group: Any) -> None:
    """Make the table of all commands in ``group``, and keep it."""
    _cache().write(_QUESTION, (json.dumps(command_row(group)),))


def command_row(command: Any, name: str = "tieredstore") -> CommandRow:
    """The table of a command of typer's, and of all below it."""
    import typer

    completers = _completers(command)
    context = typer.Context(command, info_name=name)
    below: dict[str, Any] = getattr(command, "commands", {})
    return {
        "help": command.get_short_help_str(),
        "is_group": hasattr(command, "commands"),
        "parameters": [
            _parameter_row(each, completers.get(each.name)) for each in command.get_params(context) if not each.hidden
        ],
        "commands": {each: command_row(below[each], each) for each in below if not below[each].hidden},
    }


def _parameter_row(parameter: Any, completer: str | None) -> ParameterRow:
    is_option = parameter.param_type_name == "option"
    choices = getattr(parameter, "type_descriptor", None) and parameter.type_descriptor.choices
    return {
        "parameter": parameter.name,
        "names": [*parameter.opts, *parameter.secondary_opts] if is_option else [],
        "takes_value": not (is_option and (parameter.is_flag or parameter.count)),
        "is_many": parameter.nargs != 1 or bool(getattr(parameter, "multiple", False)),
        "help": parameter.help or "",
        "choices": [str(getattr(choice, "value", choice)) for choice in choices or ()],
        "completer": completer,
    }


def _completers(command: Any) -> dict[str, str]:
    """The names of the functions that complete a command's parameters."""
    import inspect
    from typing import get_type_hints

    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    declared = ((name, info) for name, hint in hints.items() for info in getattr(hint, "__metadata__", ()))
    functions = ((name, getattr(info, "autocompletion", None)) for name, info in declared)
    return {name: function.__name__ for name, function in functions if function is not None}


def _cache() -> CompletionCache:
    """Where the table of these very files lies."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    known = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return CompletionCache.of(repr([str(Path(__file__).parent), known]))
