"""Help pages: what one may type and what it does, without the names of Python's types, and no word cut."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tieredstore.cli.usage import UsageProblem, no_such_command

_MARGIN: Final = "  "
_RANGE: Final = re.compile(r"(\d+)<=x<=(\d+)")
_LEAST: Final = re.compile(r"x>=(\d+)")
_CHOICE: Final = re.compile(r"<(\w+(?:\|[\w-]+)*)>")
_NOISE: Final = re.compile(r"(?:; )?(?:x>=0|required)(?=[\];])")


class Command(TyperCommand):
    """A command whose help says what a person needs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is wrong with ``args`` is told as wrong usage of this command."""
        with _of_context(ctx):
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """TOPIC, not {TOPIC}."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options; an argument has its name, a switch no value."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """Commands, each with the first sentence of its help, whole."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is wrong with ``args`` is told as wrong usage of this group."""
        with _of_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named; ConfigError names the one that was meant."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise no_such_command(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The options of all commands, then the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each command and what it does; a long sentence goes on in the next line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _first_sentence(command.help)) for name, command in commands if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def command_of(app: typer.Typer) -> Any:
    """The command that ``app`` describes: all of its commands have such help, whoever registered them."""
    for each in _apps(app):
        each.info.cls = Group
        for command in each.registered_commands:
            command.cls = Command
    return typer.main.get_command(app)


def commands_below(group: Any) -> Iterator[TyperCommand]:
    """All commands of a group, and of the groups in it."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            yield from commands_below(command)
        else:
            yield command


@contextlib.contextmanager
def _of_context(context: Any) -> Generator[None]:
    """The parser does not always say of which command it is that something is wrong."""
    try:
        yield
    except UsageProblem as problem:
        untyped: Any = problem
        untyped.ctx = untyped.ctx or context
        raise


def _apps(app: typer.Typer) -> Iterator[typer.Typer]:
    yield app
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _apps(group.typer_instance)


def _first_sentence(words: str | None) -> str:
    return " ".join((words or "").split("\n\n")[0].split())


def _write_parameters(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            name, words = record
            is_argument = parameter.param_type_name == "argument"
            shown = name.partition(" ")[0].strip("[]{}") if is_argument else _CHOICE.sub(r"\1", name)
            sections[parameter.param_type_name].append((shown, _without_noise(words)))
    for title, rows in sections.items():
        if rows:
            with formatter.section(f"{title.capitalize()}s"):
                formatter.write_dl(rows)


def _without_noise(words: str) -> str:
    """Without what the usage line or good sense says: that numbers begin at 0, that an argument is required."""
    words = _NOISE.sub("", words).replace("[; ", "[").removesuffix("[]").rstrip()
    return _LEAST.sub(r"at least \1", _RANGE.sub(r"\1 to \2", words))
