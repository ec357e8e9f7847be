"""Help pages: what one may type and what it does, without the names of Python's types, and no word cut."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup

from tieredstore.cli.app.table import Entry, all_entries, entry_of
from tieredstore.cli.app.usage import UsageProblem, no_such_command

Verbose: TypeAlias = Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr.")]

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
        command = self.commands.get(args[0])
        if command is None and not ctx.resilient_parsing:
            raise no_such_command(ctx, args[0])
        return (args[0] if command else None), command, args[1:]

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


class AllCommands(Group):
    """The commands of the table: listed by their summaries, and imported when they are named."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("dict[str, Any]", _Commands())

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the parser's signature
        """Return the names of all commands."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  the parser's signature
        """Return what lists of commands show of one."""
        entry = entry_of(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.summary)


class _Commands(Mapping[str, Any]):
    """The parser's commands by name."""

    def __getitem__(self, name: str) -> Any:
        entry = entry_of(name)
        if entry is None:
            raise KeyError(name)
        return load_command(entry)

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in all_entries())

    def __len__(self) -> int:
        return len(all_entries())


@functools.cache
def load_command(entry: Entry) -> Any:
    """Import a command and give it, and all below it, our help and the option ``-v`` behind it."""
    loaded = entry.load()
    if not isinstance(loaded, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(entry.name)(loaded)
        loaded = app
    loaded.info.name, loaded.info.cls, loaded.rich_markup_mode = entry.name, Group, None
    for each in loaded.registered_commands:
        each.cls = Command
    command: Any = typer.main.get_command(loaded)
    for below in command.commands.values() if isinstance(command, Group) else (command,):
        below.params.append(_verbose_option())
    return command


@functools.cache
def _verbose_option() -> Any:
    def declare(verbose: Verbose = False) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(declare)
    (option,) = typer.main.get_command(app).params
    # It stands behind a command too, where people look for it.
    option.expose_value, option.callback = False, _say_more
    return option


def _say_more(_context: object, _parameter: object, verbose: bool) -> None:
    if verbose:
        logging.getLogger("tieredstore").setLevel(logging.INFO)


@contextlib.contextmanager
def _of_context(context: Any) -> Generator[None]:
    """The parser does not always say of which command it is that something is wrong."""
    try:
        yield
    except UsageProblem as problem:
        untyped: Any = problem
        untyped.ctx = untyped.ctx or context
        raise


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
