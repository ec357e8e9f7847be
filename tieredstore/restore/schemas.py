"""Registration of a snapshot's schemas in a schema registry. In the mode IMPORT, the schemas keep their subjects,
versions and ids.

A message begins with the id of its schema. The message is readable only if the registry has the schema under the same
id. In the mode IMPORT, the registry takes ids and versions from the request, and does not check compatibility.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final, TypeAlias
from urllib.parse import quote

from tieredstore.api.outcomes import Outcome, Plan, Status
from tieredstore.errors import ConfigError, CorruptDataError, SchemaNotFoundError
from tieredstore.format.cluster_snapshot import RegistrySchemas, SchemaVersion
from tieredstore.format.json_object import Json
from tieredstore.ops.snapshots.registry import (
    compatibility_of,
    mode_of,
    schema_of,
    subject_path,
    subjects_of,
    versions_of,
)
from tieredstore.schema_registry import SchemaRegistry

_IMPORT: Final = "IMPORT"
_Place: TypeAlias = tuple[str, int]


def plan_schemas(registry: SchemaRegistry, held: RegistrySchemas) -> Plan:
    """Return a plan that registers the missing versions, and sets the compatibility levels of the snapshot.

    The registry's global level is set only if the registry has no other subjects. If the process is killed, the next
    plan completes the work.

    Raise ConfigError if the registry has another schema under an id or a version.
    """
    ordered, present = list(_order(held)), _Present.of(registry, held)

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        yield from _import(registry, ordered, present, dry_run=dry_run)
        yield from _set_levels(registry, held, dry_run=dry_run)

    return Plan("restore_schemas", ", ".join(registry.settings.urls), outcomes)


@dataclass(frozen=True, slots=True)
class _Present:
    """The versions of a snapshot's subjects that a registry already has, and these subjects' modes in the registry."""

    versions: dict[_Place, SchemaVersion]
    modes: dict[str, str]

    @classmethod
    def of(cls, registry: SchemaRegistry, held: RegistrySchemas) -> _Present:
        """Look up the versions in the registry. Raise ConfigError if the registry has other schemas under the same ids
        or versions."""
        subjects = sorted({each.subject for each in held.versions})
        found = [stored.held for subject in subjects for stored in versions_of(registry, subject)]
        modes = {subject: mode for subject in subjects if (mode := mode_of(registry, subject)) is not None}
        present = cls({_place(each): each for each in found}, modes)
        for version in held.versions:
            present.refuse_other(registry, version)
        return present

    def refuse_other(self, registry: SchemaRegistry, version: SchemaVersion) -> None:
        """Raise ConfigError if the registry has another schema in place of this version, or under its id."""
        there, urls = self.versions.get(_place(version)), ", ".join(registry.settings.urls)
        if there is not None:
            if there.id != version.id or not _is_same(there, version):
                raise ConfigError(
                    f"{urls} has another schema as version {version.version} of {version.subject} (id {there.id}, not "
                    f"{version.id}): restore into a registry without this version"
                )
            return
        with contextlib.suppress(SchemaNotFoundError):
            if not _is_same(schema_of(registry, version), version):
                raise ConfigError(
                    f"{urls} has another schema under the id {version.id} of {version.subject} version "
                    f"{version.version}: restore into a registry without this id"
                )

    def is_to_delete(self, version: SchemaVersion) -> bool:
        """Return True if a version is soft-deleted in the snapshot, but absent or not deleted in the registry."""
        there = self.versions.get(_place(version))
        return version.is_deleted and not (there is not None and there.is_deleted)


def _import(
    registry: SchemaRegistry, ordered: Sequence[SchemaVersion], present: _Present, *, dry_run: bool
) -> Generator[Outcome]:
    """Register and soft-delete versions in the mode IMPORT. Restore the subjects' modes at the end, even after an
    error."""
    changed = {each.subject for each in ordered if _place(each) not in present.versions or present.is_to_delete(each)}
    # These subjects are already in the mode IMPORT, because a killed run has not restored their mode.
    left = {subject for subject, mode in present.modes.items() if mode == _IMPORT}
    try:
        for subject in sorted(changed - left):
            _set_mode(registry, subject, _IMPORT, dry_run=dry_run)
        for version in ordered:
            is_there = _place(version) in present.versions
            if not is_there and not dry_run:
                _register(registry, version)
            name = f"{version.subject} version {version.version}"
            yield _outcome("there" if is_there else "registered", name, f"id {version.id}", dry_run=dry_run)
        # Delete in reverse order, because a version to which another version refers cannot be deleted.
        for version in filter(present.is_to_delete, reversed(ordered)):
            name = f"{version.subject} version {version.version}"
            if not dry_run:
                path = f"{subject_path(version.subject)}/versions/{version.version}"
                registry.ask(path, name, method="DELETE")
            yield _outcome("deleted", name, "as it was in the snapshot", dry_run=dry_run)
    finally:
        for subject in sorted(changed | left):
            before = present.modes.get(subject)
            _set_mode(registry, subject, None if before == _IMPORT else before, dry_run=dry_run)
    for subject in sorted(left):
        yield _outcome("reset", subject, f"its mode was {_IMPORT}, as after a run that was killed", dry_run=dry_run)


def _set_levels(registry: SchemaRegistry, held: RegistrySchemas, *, dry_run: bool) -> Iterator[Outcome]:
    levels: dict[str | None, str] = dict(held.subject_compatibility.items())
    if not set(subjects_of(registry)) - {each.subject for each in held.versions}:
        levels[None] = held.compatibility
    for subject, level in levels.items():
        if compatibility_of(registry, subject) == level:
            continue
        if not dry_run:
            path = "/config" if subject is None else f"/config/{quote(subject, safe='')}"
            registry.ask(path, "its compatibility", method="PUT", body={"compatibility": level})
        yield _outcome("set", subject or "the registry", f"compatibility {level}", dry_run=dry_run)


def _order(held: RegistrySchemas) -> Iterator[SchemaVersion]:
    """Yield all versions ordered by id, except that a version comes after the versions to which it refers."""
    by_place = {_place(each): each for each in sorted(held.versions, key=lambda each: (each.id, each.version))}
    sorter: TopologicalSorter[_Place] = TopologicalSorter()
    for place, version in by_place.items():
        references = ((each.subject, each.version) for each in version.references)
        sorter.add(place, *(each for each in references if each in by_place))
    try:
        return iter([by_place[place] for place in sorter.static_order()])
    except CycleError:
        raise CorruptDataError("the snapshot's schemas refer to each other in a cycle") from None


def _register(registry: SchemaRegistry, version: SchemaVersion) -> None:
    body: dict[str, Json] = {
        "schema": version.schema, "schemaType": version.schema_type, "id": version.id, "version": version.version,
        "references": [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in version.references
        ],
    }  # fmt: skip
    what = f"version {version.version} of {version.subject}"
    registry.ask(f"{subject_path(version.subject)}/versions", what, method="POST", body=body)


def _set_mode(registry: SchemaRegistry, subject: str, mode: str | None, *, dry_run: bool) -> None:
    """Set a subject's mode in the registry; None removes the subject's own mode, so that the registry's mode
    applies."""
    path, what = f"/mode/{quote(subject, safe='')}", f"the mode of {subject}"
    if dry_run:
        return
    if mode is None:
        with contextlib.suppress(SchemaNotFoundError):
            registry.ask(path, what, method="DELETE")
    else:
        # Without force, a registry refuses IMPORT for a subject with versions.
        registry.ask(f"{path}?force=true", what, method="PUT", body={"mode": mode})


def _is_same(one: SchemaVersion, other: SchemaVersion) -> bool:
    return (one.schema_type, set(one.references)) == (other.schema_type, set(other.references)) and (
        one.schema == other.schema or _json_of(one.schema) == _json_of(other.schema)
    )


def _json_of(text: str) -> object:
    """Return the text parsed as JSON, because registries may change the spaces in it. Return the text itself if it is
    not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _place(version: SchemaVersion) -> _Place:
    return version.subject, version.version


def _outcome(code: str, name: str, reason: str, *, dry_run: bool) -> Outcome:
    status: Status = "kept" if code == "there" else "planned" if dry_run else "done"
    return Outcome(action="restore_schemas", status=status, code=code, name=name, reason=reason)
