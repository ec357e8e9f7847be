"""The command ``tieredstore``: parser, help pages, exit codes and one-sentence errors.

Help pages show no Python type names, and never cut a word. ``entry`` imports this module after it has arranged that
signals end the process quietly.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup

from tieredstore.cli.app.entry import VERSION, show_version, version_text
from tieredstore.cli.app.groups import expand
from tieredstore.cli.app.table import Entry, all_entries, entry_of
from tieredstore.cli.terminal.output import complain
from tieredstore.cli.terminal.streams import StandardOutputFailedError
from tieredstore.errors import ConfigError, TieredStoreError, excerpt, quote, redact
from tieredstore.installation import Extra

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from typer._click.core import Command as ParserCommand
    from typer._click.core import Context, Parameter
    from typer._click.exceptions import BadOptionUsage, BadParameter, MissingParameter, NoSuchOption, UsageError
    from typer._click.formatting import HelpFormatter

Verbose: TypeAlias = Annotated[bool, typer.Option("-v", "--verbose", help="Verbose output on stderr.")]

_RANGE: Final = re.compile(r"(\d+)<=x<=(\d+)")
_LEAST: Final = re.compile(r"x>=(\d+)")
_CHOICE: Final = re.compile(r"<(\w+(?:\|[\w-]+)*)>")
_NOISE: Final = re.compile(r"(?:; )?(?:x>=0|required)(?=[\];])")


class Command(TyperCommand):
    """A command with help for users."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Report errors in ``args`` as wrong usage of this command."""
        with _of_context(ctx):
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return the parts of the usage line. Arguments are shown as TOPIC, not as {TOPIC}."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help on arguments and options, with the names of arguments, and without values for switches."""
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands. Its help lists each command with the whole first paragraph of the command's help."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Report errors in ``args`` as wrong usage of this group."""
        with _of_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, ParserCommand | None, list[str]]:
        """Return the named command. If there is no such command, raise a ConfigError that suggests a similar name."""
        command = self.commands.get(args[0])
        if command is None and not ctx.resilient_parsing:
            raise no_such_command(ctx, args[0], self.commands)
        return (args[0] if command else None), command, args[1:]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the options that all commands have, then the list of commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write each command and its summary. A long sentence continues on the next line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _first_sentence(command.help)) for name, command in commands if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class AllCommands(Group):
    """All commands of the program. The help lists the commands with their summaries. A command is imported when it is
    called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, ParserCommand]", _Commands())

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002  the parser's signature
        """Return the names of all commands."""
        return list(self.commands)

    def get_command(self, ctx: Context, cmd_name: str) -> ParserCommand | None:  # noqa: ARG002  the parser's signature
        """Return a command's name and summary, in the form that lists of commands need."""
        entry = entry_of(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.summary)


class _Commands(Mapping[str, "ParserCommand"]):
    """The parser's commands by name."""

    def __getitem__(self, name: str) -> ParserCommand:
        entry = entry_of(name)
        if entry is None:
            raise KeyError(name)
        return load_command(entry)

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in all_entries())

    def __len__(self) -> int:
        return len(all_entries())


@functools.cache
def load_command(entry: Entry) -> ParserCommand:
    """Import a command. Give it and its subcommands the help of this module and the option ``-v``."""
    loaded = entry.load()
    if not isinstance(loaded, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(entry.name)(loaded)
        loaded = app
    loaded.info.name, loaded.info.cls, loaded.rich_markup_mode = entry.name, Group, None
    loaded.info.help, loaded.info.no_args_is_help = entry.summary, True
    for each in loaded.registered_commands:
        each.cls = Command
        each.callback = each.callback and expand(each.callback)
    command = typer.main.get_command(loaded)
    for below in command.commands.values() if isinstance(command, Group) else (command,):
        below.params.append(_verbose_option())
    return command


@functools.cache
def _verbose_option() -> Parameter:
    def declare(verbose: Verbose = False) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(declare)
    (option,) = typer.main.get_command(app).params
    # Accept ``-v`` after a command too, where users look for it.
    option.expose_value, option.callback = False, _say_more
    return option


def _say_more(_context: object, _parameter: object, verbose: bool) -> None:
    if verbose:
        logging.getLogger("tieredstore").setLevel(logging.INFO)


@contextlib.contextmanager
def _of_context(context: Context) -> Generator[None]:
    """Add the command to usage errors that the block raises, because the parser does not always name the command."""
    try:
        yield
    except UsageProblem as problem:
        problem.ctx = problem.ctx or context
        raise


def _first_sentence(words: str | None) -> str:
    return " ".join((words or "").split("\n\n")[0].split())


def _write_parameters(command: TyperCommand | TyperGroup, ctx: Context, formatter: HelpFormatter) -> None:
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            name, words = record
            is_argument = parameter.param_type_name == "argument"
            shown = name.partition(" ")[0].strip("[]{}") if is_argument else _CHOICE.sub(r"\1", name)
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append((shown, _without_noise(words)))
    for title, rows in panels.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _without_noise(words: str) -> str:
    """Drop notes that the usage line makes needless: numbers begin at 0, an argument is required."""
    words = _NOISE.sub("", words).replace("[; ", "[").removesuffix("[]").rstrip()
    return _LEAST.sub(r"at least \1", _RANGE.sub(r"\1 to \2", words))


_HELP: Final = """Tiered storage for Kafka's log without the broker: copy, list, read and delete the segments that
Kafka's tiered storage (Aiven's plugin) keeps in an object store.

A first session:

\b
  tieredstore keys new key1 >> store.properties             make a key pair
  tieredstore upload -c store.properties /var/lib/kafka     upload segments
  tieredstore ls -c store.properties                        list segments
  tieredstore cat -c store.properties TOPIC                 show records
  tieredstore query -c store.properties "SELECT count(*) FROM TOPIC"
  tieredstore fetch -c store.properties TOPIC 0 0 -o 0.log  fetch a segment

store.properties has the plugin's own settings (storage.backend.class, storage.root, chunk.size …); a broker's
server.properties works too. TIEREDSTORE_SETTINGS may name the file instead of -c.
"""
_EPILOG: Final = """\b
Exit codes:
  0    done                          6    refused by store or broker
  1    output not written            75   try again later
  2    wrong usage or settings       129  ended by SIGHUP
  3    not there                     130  ended by Ctrl-C
  4    damaged                       143  ended by SIGTERM
  5    there already                 141  output pipe closed
"""

app: Final = typer.Typer(
    name="tieredstore",
    cls=AllCommands,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text, as in other tools; importing rich would take time
    # For a bug, show Python's own traceback. A decorated traceback can show the values of variables, including secrets.
    pretty_exceptions_enable=False,
)


class _Complaints(logging.Handler):
    """A log handler that shows the library's log as sentences on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(version_text() + "\n")
        raise typer.Exit


@app.callback()
def options(
    verbose: Verbose = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version; with --json also the version of the JSON output.",
        ),
    ] = False,
) -> None:
    """Options of all commands."""
    logger = logging.getLogger("tieredstore")
    if not any(isinstance(handler, _Complaints) for handler in logger.handlers):
        logger.addHandler(_Complaints())
    logger.setLevel(logging.INFO if verbose else logging.NOTSET)
    # Give the SDKs' loggers a handler. Otherwise, Python would print their warnings in addition to our sentence about
    # the same error.
    for sdk in ("azure", "botocore", "google", "msal", "urllib3"):
        logging.getLogger(sdk).addHandler(logging.NullHandler())


@functools.cache
def program() -> TyperGroup:
    """Make the parser only once. Tests run many commands in one process, and making the parser takes most of a
    command's time."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The library's errors become one sentence on stderr. Bugs are raised."""
    if (asked := list(sys.argv[1:] if arguments is None else arguments)) in VERSION:
        return show_version(asked)
    try:
        # Without standalone mode, the parser returns the exit code of typer.Exit. In standalone mode, it would report
        # wrong usage in its own words.
        code = int(cast("int | None", program()(args=arguments, prog_name="tieredstore", standalone_mode=False)) or 0)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except UsageProblem as problem:
        code = tell_usage(problem)
    except StandardOutputFailedError as error:
        code = error.exit_code  # the stream has already reported the error
    except ModuleNotFoundError as error:
        told = Extra("this").missing_error(error)
        if told is None:
            raise
        complain(str(told))
        code = told.exit_code
    except TieredStoreError as error:
        complain(str(error))
        for note in getattr(error, "__notes__", ()):
            complain(str(note))
        code = error.exit_code
    except OSError as error:
        code = tell_refusal(error)
    return code


_FULL_DISK: Final = (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)


def tell_refusal(error: OSError) -> int:
    """Report a path that the system refuses to look up (``Path.is_file`` and the like raise the system's error), or a
    full disk. Return the exit code. Raise any other error, because it is a bug.
    """
    if error.filename is not None and error.errno in (errno.EACCES, errno.ENAMETOOLONG, *_FULL_DISK):
        complain(f"{excerpt(redact(error.filename), 200)} cannot be used: {error.strerror}")
    elif error.errno in _FULL_DISK:
        way = "free space, or set TMPDIR to a folder of another disk"
        complain(f"a local or temporary file cannot be written: {error.strerror}: {way}")
    else:
        raise error
    return ConfigError.exit_code


UsageProblem: Final = cast("type[UsageError]", typer.BadParameter.__base__)
"""The common base of the parser's errors. typer exports only some of its subclasses."""

_MEANT: Final[Mapping[str, str]] = {
    "check": "verify", "clean": "gc", "consume": "cat --group", "consumer": "cat --group", "convert": "cat -o",
    "copy": "upload", "cost": "du --prices", "cp": "mirror", "delete": "rm", "describe": "inspect", "df": "du",
    "diagnose": "doctor", "download": "fetch", "dump": "show", "export": "cat -o", "fsck": "verify", "get": "fetch",
    "hold": "holds", "index": "inspect --index", "list": "ls", "offsets": "ls", "ps": "ls", "put": "upload",
    "read": "cat", "records": "cat", "remove": "rm", "segments": "ls", "size": "du", "sql": "query",
    "stat": "inspect", "sync": "mirror", "tail": "cat --follow", "topics": "ls", "validate": "verify", "view": "cat",
}  # fmt: skip
"""Commands' names in other tools, and the names of the same commands here."""

_MOVED: Final[Mapping[str, str]] = {
    "keys add": "keys new", "keys check": "keys list", "keys generate": "keys new", "lifecycle": "doctor",
    "version": "--version",
    "pubsub audit": "pubsub verify", "pubsub consume": "pubsub cat", "pubsub cost": "pubsub topics --prices FILE",
    "pubsub groups": "pubsub topics TOPIC", "pubsub inspect": "show FILE",
}  # fmt: skip
"""Subcommands of other tools, each with the command that does the same here."""


def tell_usage(problem: UsageError) -> int:
    """Report an error of the parser on stderr, in our words. Return the exit code."""
    if type(problem).__name__ == "NoArgsIsHelpError":
        problem.show()  # this error prints the help
    else:
        complain(_SENTENCES.get(type(problem).__name__, _other)(problem))
    return ConfigError.exit_code


def no_such_command(context: Context, name: str, there: Collection[str]) -> ConfigError:
    """Return an error that names a command with a similar name or meaning, if there is one."""
    from tieredstore.config.nearest import did_you_mean

    path = context.command_path
    called = f"{path} {name}".partition(" ")[2]
    meant = _MEANT.get(name, "")
    if called in _MOVED:
        hint = f"; {context.find_root().command_path} {_MOVED[called]} does that"
    elif meant.partition(" ")[0] in there:
        hint = f"; {path} {meant} does that"
    else:
        hint = did_you_mean(name, there, otherwise=f"{path} --help lists them")
    return ConfigError(f"there is no command {quote(called)}{hint}")


def _no_such_option(problem: NoSuchOption) -> str:
    near = problem.possibilities or ()
    way_out = f"did you mean {' or '.join(near)}?" if near else f"{_path(problem)} --help lists its options"
    return f"{_command(problem)} has no option {quote(problem.option_name)[1:-1]}; {way_out}"


def _missing_parameter(problem: MissingParameter) -> str:
    return f"{_command(problem)} needs {_name(problem.param)}: {_usage_line(_context(problem))}"


def _bad_value(problem: BadParameter) -> str:
    from pydantic import ValidationError

    cause, subject = problem.__cause__, _name(problem.param)
    if not isinstance(cause, ValidationError):
        return f"{subject}: {_uncapitalize(problem.message)}"
    error = cause.errors()[0]
    return f"{subject} is {quote(error['input'])}: {_requirement_of(error)}; {_path(problem)} --help explains it"


def _requirement_of(error: ErrorDetails) -> str:
    """Return the requirement that a refused value does not meet."""
    kind, limits = str(error["type"]), error.get("ctx", {})
    if kind.startswith(("int", "float")):
        return "it must be a number" if kind.startswith("float") else "it must be a whole number"
    for limit, words in (("ge", "least"), ("le", "most")):
        if limit in limits:
            return f"it must be at {words} {limits[limit]}"
    if choices := re.search(r"is not one of (.+?)\.?$", str(error["msg"])):
        return f"it must be one of {choices[1].replace(chr(39), '')}"
    return _uncapitalize(str(error["msg"]).removeprefix("Value error, "))


def _bad_option(problem: BadOptionUsage) -> str:
    option = problem.option_name
    if "does not take" in problem.message:
        return f"{option} takes no value; {_path(problem)} --help explains it"
    metavar = next((each.metavar for each in _context(problem).command.params if option in each.opts), None)
    shown = f": {option} {metavar}" if metavar else ""
    return f"{option} needs a value{shown}; {_path(problem)} --help explains it"


def _other(problem: UsageError) -> str:
    if surplus := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", problem.message, re.DOTALL):
        return f"unexpected argument {quote(surplus[1])} for {_command(problem)}: {_usage_line(_context(problem))}"
    return _uncapitalize(problem.message)


_SENTENCES: Final[Mapping[str, Callable[[Any], str]]] = {
    "NoSuchOption": _no_such_option,
    "MissingParameter": _missing_parameter,
    "BadParameter": _bad_value,
    "BadOptionUsage": _bad_option,
}


def _context(problem: UsageError) -> Context:
    assert problem.ctx is not None  # ``_of_context`` has added the context
    return problem.ctx


def _path(problem: UsageError) -> str:
    """Return the whole call, such as ``tieredstore keys list``."""
    return _context(problem).command_path


def _command(problem: UsageError) -> str:
    """Return the command without the program, such as ``keys list``."""
    return _path(problem).partition(" ")[2] or "tieredstore"


def _usage_line(context: Context) -> str:
    """Return the call with its required options, such as ``tieredstore fetch TOPIC PARTITION BASE_OFFSET``."""
    pieces = context.command.collect_usage_pieces(context)
    options = [
        f"{_name(parameter)} {parameter.metavar}"
        for parameter in context.command.params
        if parameter.required and parameter.param_type_name == "option"
    ]
    return " ".join([context.command_path, *(piece for piece in pieces if piece != "[OPTIONS]"), *options])


def _name(parameter: Parameter | None) -> str:
    """Return a parameter's name, such as ``TOPIC`` or ``--partition``."""
    if parameter is None:
        return "a value"
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).strip("[]{}.")
    return max(map(str, parameter.opts), key=len)


def _uncapitalize(message: str) -> str:
    return (message[:1].lower() + message[1:]).rstrip(".")
