"""The command ``tieredstore``: its commands, its exit codes, its one-sentence errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from copy import copy as copy_of
from typing import Annotated, Any, Final, cast

import typer

from tieredstore.cli import (
    cat,
    copy,
    cost,
    cp,
    delete,
    doctor,
    du,
    dump,
    export,
    fetch,
    gc,
    hold,
    inspect,
    keys,
    lifecycle,
    ls,
    query,
    records,
    rm,
    verify,
)
from tieredstore.cli.arguments import Json
from tieredstore.cli.completion_table import keep_table
from tieredstore.cli.help import command_of, commands_below
from tieredstore.cli.output import complain, print_json
from tieredstore.cli.streams import StandardOutputFailed
from tieredstore.cli.usage import UsageProblem, tell_usage
from tieredstore.cli.version import JSON_VERSION, version_text
from tieredstore.consumer.cli import consume
from tieredstore.errors import TieredStoreError
from tieredstore.installation import version as package_version
from tieredstore.pipelines.cli import pipeline
from tieredstore.pubsub.cli import pubsub
from tieredstore.uploader.cli import uploader

_HELP: Final = """Tiered storage for Kafka's log without the broker: copy, list, read and delete the segments that
Kafka's tiered storage (Aiven's plugin) keeps in an object store.

A first session:

\b
  tieredstore keys generate key1 >> store.properties        a key pair
  tieredstore copy -c store.properties /var/lib/kafka       closed segments up
  tieredstore ls -c store.properties                        what is stored
  tieredstore cat -c store.properties TOPIC                 its records
  tieredstore query -c store.properties "SELECT count(*) FROM TOPIC"
  tieredstore fetch -c store.properties TOPIC 0 0 -o 0.log  a segment back

store.properties has the plugin's own settings (storage.backend.class, storage.root, chunk.size …), and so has a
broker's server.properties. TIEREDSTORE_SETTINGS may name it instead of -c.
"""
_EPILOG: Final = """\b
Exit codes:
  0    done                          6    refused by store or broker
  1    output not written            75   try again later
  2    wrong usage or settings       129  ended by SIGHUP
  3    not there                     130  ended by Ctrl-C
  4    damaged                       143  ended by SIGTERM
  5    there already                 141  nobody read on
"""

app: Final = typer.Typer(
    name="tieredstore",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text, as other tools have it, and none of the time that rich takes to be imported
    # A traceback of a bug is Python's own: a decorated one can show the values of variables, and so secrets.
    pretty_exceptions_enable=False,
)


class _Complaints(logging.Handler):
    """Shows what the library logs as sentences on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(version_text() + "\n")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more on stderr.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""
    logger = logging.getLogger("tieredstore")
    if not any(isinstance(handler, _Complaints) for handler in logger.handlers):
        logger.addHandler(_Complaints())
    logger.setLevel(logging.INFO if verbose else logging.NOTSET)
    # Without a handler Python prints warnings of the SDKs itself, beside the sentence that we make of their errors.
    for sdk in ("azure", "botocore", "google", "msal", "urllib3"):
        logging.getLogger(sdk).addHandler(logging.NullHandler())
    # What of a pipeline's file has no effect is said to whoever runs a verb, and not only with -v.
    logging.getLogger("tieredstore.pipelines.config.settings").setLevel(logging.INFO)


def _say_more(_context: object, _parameter: object, verbose: bool) -> None:
    if verbose:
        logging.getLogger("tieredstore").setLevel(logging.INFO)


app.command()(copy.copy)
app.command()(ls.ls)
app.command()(inspect.inspect)
app.command()(fetch.fetch)
app.command()(fetch.index)
app.command()(cat.cat)
app.command()(consume.consume)
app.command()(query.query)
app.command()(export.export)
app.command()(records.offsets)
app.command()(dump.dump)
app.command()(delete.delete)
app.command()(cp.cp)
app.command()(rm.rm)
app.command()(gc.gc)
app.command()(du.du)
app.command()(cost.cost)
app.command()(verify.verify)
app.command()(uploader.uploader)
app.command()(doctor.doctor)
app.add_typer(keys.app, name="keys")
app.add_typer(hold.app, name="hold")
app.add_typer(lifecycle.app, name="lifecycle")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(pubsub.app, name="pubsub")


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version; with --json also that of the JSON which commands print.

    Example: tieredstore version
    """
    if as_json:
        print_json({"version": package_version(), "json_version": JSON_VERSION})
    else:
        sys.stdout.write(version_text() + "\n")


@functools.cache
def program() -> Callable[..., object]:
    """All commands.

    Made once: for a caller that runs many commands, as the tests do, it is most of what a command costs.
    """
    group: Any = command_of(app)
    (verbose,) = (parameter for parameter in group.params if parameter.name == "verbose")
    # Behind the command too, where people look for it.
    behind = copy_of(verbose)
    behind.expose_value, behind.callback = False, _say_more
    for command in commands_below(group):
        command.params.append(behind)
    run: Callable[..., object] = group
    return run


def complete() -> int:
    """Answer the shell, and keep what will answer it sooner the next time."""
    code = main()
    with contextlib.suppress(OSError):
        keep_table(program())
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors of the library are one sentence on stderr; bugs are raised."""
    try:
        # Its own way to tell of wrong usage is another than ours; what it returns is the code of typer.Exit.
        code = int(cast("int | None", program()(args=arguments, prog_name="tieredstore", standalone_mode=False)) or 0)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except UsageProblem as problem:
        code = tell_usage(problem)
    except StandardOutputFailed as error:
        code = error.exit_code  # the stream has said so itself
    except TieredStoreError as error:
        complain(str(error))
        for note in getattr(error, "__notes__", ()):
            complain(str(note))
        code = error.exit_code
    return code
