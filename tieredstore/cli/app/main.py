"""The command ``tieredstore``: its commands, its exit codes, its one-sentence errors."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import typer

from tieredstore.cli.app.entry import version_text
from tieredstore.cli.app.help import AllCommands, Verbose
from tieredstore.cli.app.table import EXTRAS
from tieredstore.cli.app.usage import UsageProblem, tell_usage
from tieredstore.cli.terminal.output import complain
from tieredstore.cli.terminal.streams import StandardOutputFailed
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.installation import install_command

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
    cls=AllCommands,
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
    verbose: Verbose = False,
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


@functools.cache
def program() -> Any:
    """Make the parser once: for a caller that runs many commands, as tests do, it is most of what a command costs."""
    return typer.main.get_command(app)


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
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        complain(f"this needs {error.name}: {install_command(extra)}")
        code = ConfigError.exit_code
    except TieredStoreError as error:
        complain(str(error))
        for note in getattr(error, "__notes__", ()):
            complain(str(note))
        code = error.exit_code
    return code
