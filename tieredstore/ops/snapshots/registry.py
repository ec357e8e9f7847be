"""The contents of a schema registry in a snapshot: all versions of all subjects, including soft-deleted ones.

Messages may refer to ids of soft-deleted schemas, and the registry still serves these schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import quote

from pydantic import Field, TypeAdapter, ValidationError

from tieredstore.errors import RegistryError, SchemaNotFoundError
from tieredstore.format.cluster_snapshot import NotHeld, RegistrySchemas, SchemaReference, SchemaVersion
from tieredstore.limits import MAX_INT32
from tieredstore.versions import fault_in

if TYPE_CHECKING:
    from tieredstore.schema_registry import SchemaRegistry

_Number = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a subject in a registry. ``has_rules`` is True if it has metadata or rules beside its schema."""

    held: SchemaVersion
    has_rules: bool


def read_schemas(registry: SchemaRegistry) -> tuple[RegistrySchemas, list[NotHeld]]:
    """Return all schemas of the registry's default context, and the versions whose metadata and rules are left out.

    The call makes three requests per subject and one per version. Raise RegistryError if the registry fails.
    """
    held: list[SchemaVersion] = []
    levels: dict[str, str] = {}
    not_held: list[NotHeld] = []
    for subject in subjects_of(registry):
        for stored in versions_of(registry, subject):
            held.append(stored.held)
            if stored.has_rules:
                name = f"{subject} {stored.held.version}"
                not_held.append(NotHeld("schema", name, "the snapshot lacks the metadata and rules of this version"))
        if (level := compatibility_of(registry, subject)) is not None:
            levels[subject] = level
    return RegistrySchemas(compatibility_of(registry) or "BACKWARD", levels, tuple(held)), not_held


def subjects_of(registry: SchemaRegistry) -> tuple[str, ...]:
    """Return the names of all subjects, including soft-deleted ones."""
    names = _parse(_NAMES, registry.ask("/subjects?deleted=true", "its subjects"), "its subjects")
    return tuple(sorted(names))


def versions_of(registry: SchemaRegistry, subject: str) -> Iterator[StoredVersion]:
    """Yield all versions of a subject, ascending. Yield none if the subject does not exist."""
    what = f"the versions of {subject}"
    path = f"{subject_path(subject)}/versions"
    every = _numbers(registry, f"{path}?deleted=true", what)
    alive = set(_numbers(registry, path, what)) if every else set[int]()
    for number in sorted(every):
        named = f"version {number} of {subject}"
        answer = registry.ask(f"{path}/{number}?deleted=true", named)
        found = _parse(_VERSION, answer, named)
        yield StoredVersion(
            SchemaVersion(
                subject, number, found.id, found.schemaType, found.schema, found.references or (), number not in alive
            ),
            bool(found.metadata or found.ruleSet),
        )


def schema_of(registry: SchemaRegistry, version: SchemaVersion) -> SchemaVersion:
    """Return ``version`` with the schema of its schema id. Raise SchemaNotFoundError if the registry lacks this
    schema."""
    what = f"the schema {version.id}"
    found = _parse(_SCHEMA, registry.ask(f"/schemas/ids/{version.id}", what), what)
    return replace(version, schema=found.schema, schema_type=found.schemaType, references=found.references or ())


def compatibility_of(registry: SchemaRegistry, subject: str | None = None) -> str | None:
    """Return the compatibility level of a subject or, without ``subject``, of the registry; None if none is set."""
    found = _ask_own(registry, "config", subject)
    return None if found is None else _parse(_LEVEL, found, "its compatibility").compatibilityLevel


def mode_of(registry: SchemaRegistry, subject: str) -> str | None:
    """Return the mode that a subject sets, such as IMPORT; None if it sets none."""
    found = _ask_own(registry, "mode", subject)
    return None if found is None else _parse(_MODE, found, "its mode").mode


def subject_path(subject: str) -> str:
    """Return the path of a subject."""
    return f"/subjects/{quote(subject, safe='')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    """The registry's answer to a request for a schema by its id. The fields have the registry's names."""

    schema: str
    schemaType: str = "AVRO"  # noqa: N815
    references: tuple[SchemaReference, ...] | None = None
    metadata: dict[str, object] | None = None
    ruleSet: dict[str, object] | None = None  # noqa: N815


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version(_Schema):
    """The answer for a version of a subject."""

    id: _Number


@dataclass(frozen=True, slots=True)
class _Level:
    compatibilityLevel: str  # noqa: N815


@dataclass(frozen=True, slots=True)
class _Mode:
    mode: str


_NAMES: Final = TypeAdapter(tuple[str, ...])
_NUMBERS: Final = TypeAdapter(tuple[_Number, ...])
_SCHEMA: Final = TypeAdapter(_Schema)
_VERSION: Final = TypeAdapter(_Version)
_LEVEL: Final = TypeAdapter(_Level)
_MODE: Final = TypeAdapter(_Mode)


def _numbers(registry: SchemaRegistry, path: str, what: str) -> tuple[int, ...]:
    try:
        return _parse(_NUMBERS, registry.ask(path, what), what)
    except SchemaNotFoundError:
        return ()


def _ask_own(registry: SchemaRegistry, kind: str, subject: str | None) -> object:
    path = f"/{kind}" if subject is None else f"/{kind}/{quote(subject, safe='')}"
    try:
        return registry.ask(path, f"the {kind} of {subject or 'the registry'}")
    except SchemaNotFoundError:
        return None


def _parse(kind: TypeAdapter[_Value], answer: object, what: str) -> _Value:
    try:
        return kind.validate_python(answer)
    except ValidationError as error:
        raise RegistryError(f"the schema registry's answer for {what} is invalid: {fault_in(error)}") from None
