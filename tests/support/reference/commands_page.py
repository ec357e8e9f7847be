"""Pages of commands, made from the help texts. Shared options are described once, exit codes with their errors."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.cli.screens import commands_below
from tieredstore import errors
from tieredstore.cli.app.main import program
from tieredstore.cli.app.table import all_entries, wing_entries
from tieredstore.pubsub import errors as pubsub_errors

Option = tuple[str, str]
"""Name and text of an option, as in a command's help."""

_INTRO: Final = """# Commands

For users of the command line and authors of scripts. `make docs` generates this page from the commands' help.

```console
$ tieredstore ls -c store.properties
```

- `tieredstore COMMAND --help` has examples, and all options of the command, the [shared ones](#shared-options)
  included. `TIEREDSTORE_SETTINGS` may name the settings file instead of `-c`.
- **These only add**, and act at once (`upload`, `mirror`, `holds place` and `uploader` have `--dry-run`):
  {adds}.
- **These delete or rewrite**, and so does `mirror --repair`. Without `--yes` they only print their plan; no command
  asks a question:
  {rewrites}.
- All others only read.
- Results go to stdout, all else to stderr. For scripts use [`--json`](json.md) and the [exit codes](#exit-codes).
- `[TOPIC]...` are names or globs (`'orders-*'`). `-v` adds details on stderr.
- `tieredstore --install-completion` completes commands, options, topics, partitions and offsets in your shell.
- The [commands of the wings](wing-commands.md) have their own page.
"""

_WINGS_INTRO: Final = """# Commands of the wings

For users of the command line who restore, upload, run pipelines, or publish and subscribe.

```console
$ tieredstore restore --help
```

[Commands](commands.md) has the [shared options](commands.md#shared-options) and the
[exit codes](commands.md#exit-codes)."""

_EVERYWHERE: Final = {"--help", "-v, --verbose"}
_NO_PANEL: Final = "Options"

_MEANINGS: Final[Mapping[int, str]] = {
    1: "output could not be written, or any other error of the library",
    2: "wrong usage, settings or arguments; a segment that cannot be copied as it is",
    3: "not there, or lost",
    4: "damaged, encrypted by an unknown key pair, or not of the type that it is read as",
    5: "there already, or changed by someone else",
    6: "refused by the store, the broker, a key management service or a schema registry; done in part",
    75: "try again later; of a service also: a thread did not end in time",
}
_ERRORS: Final = "[The error tree](../design/core.md#the-error-tree) has the code of each error in Python."
_ENDS: Final = """129, 130, 143 | ended by SIGHUP, SIGINT (Ctrl-C), SIGTERM; a service: by a second signal
141 | output pipe closed, as by `head`"""


@dataclass(frozen=True, slots=True)
class Help:
    """Help of one command: its arguments and options, by panel."""

    arguments: str
    summary: str
    panels: dict[str, list[Option]]


def render_page() -> str:
    """Return the page of the core's commands, with the options and exit codes that all commands share."""
    commands = _all_commands()
    lines = [
        _introduction(),
        "",
        "## Shared options",
        "",
        *_shared(commands, _shared_options(commands)),
        "",
        "## The core",
    ]
    return (
        "\n".join([*lines, *_own(commands, of_wings=False), "", "## Exit codes", "", _ERRORS, "", *_exit_codes()])
        + "\n"
    )


def render_wings_page() -> str:
    """Return the page of the wings' commands."""
    return "\n".join([_WINGS_INTRO, *_own(_all_commands(), of_wings=True, level="##")]) + "\n"


def _all_commands() -> dict[str, Help]:
    return {path: help_of(path, command) for path, command in commands_below(program())}


def _shared_options(commands: Mapping[str, Help]) -> set[Option]:
    count = Counter(option for one in commands.values() for options in one.panels.values() for option in options)
    return {option for option, times in count.items() if times > 1}


def _own(commands: Mapping[str, Help], *, of_wings: bool, level: str = "###") -> Iterator[str]:
    shared, wings = _shared_options(commands), {entry.name for entry in wing_entries()}
    summaries = {entry.name: entry.summary for entry in all_entries()}
    for path, one in commands.items():
        if (path.split()[0] in wings) is of_wings:
            yield from ["", f"{level} {path}", "", *_command(one, summaries.get(path, one.summary), shared)]


def _introduction() -> str:
    effects = {command: effect for entry in all_entries() for command, effect in entry.effects.items()}
    named = {
        each: ", ".join(f"`{command}`" for command, effect in effects.items() if effect == each)
        for each in ("adds", "rewrites")
    }
    return _INTRO.rstrip("\n").replace("{adds}", named["adds"]).replace("{rewrites}", named["rewrites"])


def help_of(path: str, command: Any) -> Help:
    """Read a command's help."""
    context = command.make_context(f"tieredstore {path}", [], resilient_parsing=True)
    seen = _Seen()
    command.format_options(context, seen)
    panels = {title: [each for each in rows if each[0] not in _EVERYWHERE] for title, rows in seen.panels.items()}
    arguments = command.get_usage(context).partition(path)[2].replace(" [OPTIONS]", "")
    return Help(" ".join(arguments.split()), " ".join(command.help.split("\n\n")[0].split()), panels)


class _Seen:
    """Substitute for a help formatter, which records the panels that it gets."""

    def __init__(self) -> None:
        self.panels: dict[str, list[Option]] = {}
        self._title = ""

    @contextlib.contextmanager
    def section(self, title: str) -> Generator[None]:
        """Begin a panel."""
        self._title = title
        yield

    def write_dl(self, rows: list[Option]) -> None:
        """Record the panel's rows."""
        self.panels[self._title] = [(name, " ".join(words.split())) for name, words in rows]


def _shared(commands: Mapping[str, Help], shared: set[Option]) -> Iterator[str]:
    homes: dict[Option, str] = {}
    for title, option in (
        (title, option) for one in commands.values() for title, options in one.panels.items() for option in options
    ):
        if option in shared and homes.get(option, _NO_PANEL) == _NO_PANEL:
            homes[option] = title
    panels: dict[str, list[Option]] = defaultdict(list)
    for option, title in homes.items():
        panels[title].append(option)
    yield "option | meaning\n---|---"
    for title, options in panels.items():
        yield f"**{title}** |"
        yield from map(_row, options)


def _command(one: Help, summary: str, shared: set[Option]) -> Iterator[str]:
    yield f"`{one.arguments}`: {summary}" if one.arguments else summary
    own = [option for options in one.panels.values() for option in options if option not in shared]
    if own:
        yield from ["", *map(_item, own)]


def _item(option: Option) -> str:
    name, words = option
    return f"- `{name}`: {words}"


def _row(option: Option) -> str:
    name, words = (text.replace("|", "\\|") for text in option)
    return f"`{name}` | {words}"


def _exit_codes() -> Iterator[str]:
    yield "code | meaning\n---|---"
    members = {**vars(errors), **vars(pubsub_errors)}.values()
    errors_of_ours = [each for each in members if isinstance(each, type) and issubclass(each, errors.TieredStoreError)]
    yield "0 | done"
    yield from (f"{code} | {_MEANINGS[code]}" for code in sorted({each.exit_code for each in errors_of_ours}))
    yield _ENDS
