"""Options as fields of a class: a command takes such a group as one parameter.

:func:`expand` turns a function with groups as parameters into a function that the parser understands::

    def du(topics: Topics, store: Store, work: Work, output: Output) -> None:
        with store.open() as bucket:
            usage = bucket.usage(*topics.names, **topics.which(work))

The help shows the options of a group under one heading, the group's ``PANEL``.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, ClassVar, get_args, get_type_hints

from typer.models import OptionInfo


@dataclass(frozen=True, slots=True)
class Group:
    """A group of related options. ``PANEL`` is its heading in the help."""

    PANEL: ClassVar[str] = "Options"


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the fields of its groups as separate parameters, in order."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Group]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)
    }
    if not groups:
        return command
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = groups.get(name)
        own = parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += [own] if group is None else _parameters_of(group)

    @functools.wraps(command)
    def run(**given: object) -> None:
        arguments = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()
        }
        command(**arguments, **given)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters_of(group: type[Group]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        kind, info, *_ = get_args(hints[each.name])
        shown = copy.copy(info)
        if isinstance(shown, OptionInfo):
            shown.rich_help_panel = group.PANEL
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        yield inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]
        )
