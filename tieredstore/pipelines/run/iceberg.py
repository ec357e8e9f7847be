"""An Iceberg table that lists a pipeline's published files. No file is added twice, because a table property has the
number of the last commit log entry whose files are in the table.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    FencedError,
    ResourceNotFoundError,
    StoreError,
    StoreUnavailableError,
    TieredStoreError,
    excerpt,
    redact,
)
from tieredstore.installation import Extra
from tieredstore.pipelines.log.commit_log import CommitLog, Life
from tieredstore.pipelines.log.entries import WrittenWindow, effects
from tieredstore.pipelines.log.holdings import Family
from tieredstore.pipelines.run.iceberg_rows import TableRows

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table, Transaction

    from tieredstore.config import Settings
    from tieredstore.pipelines.config.settings import Pipeline

_logger: Final = logging.getLogger(__name__)

_NUMBER: Final = "tieredstore.commit."
_REMOVED: Final = "tieredstore.removed."
_FILES_AT_ONCE: Final = 500
_ATTEMPTS: Final = 10
_SHORTEST_SECRET: Final = 4
_PERMANENT: Final = frozenset({"BadRequestError", "OAuthError", "NotInstalledError", "ValidationException"})
_DENIED: Final = frozenset({"UnauthorizedError", "ForbiddenError", "AuthorizationExpiredError"})
_AWAY: Final = frozenset(
    {
        "OSError", "RESTError", "OperationalError", "InterfaceError", "TimeoutError",
        "CommitFailedException", "CommitStateUnknownException", "WaitingForLockException",
    }
)  # fmt: skip
"""Class names of transient errors or of their base classes. Errors are recognized by these names, because the packages
that define the classes may not be installed."""

_COLUMNS: Final[Mapping[str, str | tuple[str, ...]]] = {
    "topic": "string", "partition": ("int", "long"), "offset": "long", "key": "binary", "value": "binary",
    "timestamp": "timestamp", "headers": "list<struct<",
}  # fmt: skip
"""Columns that a table needs to restore records unchanged, each with the beginning of its type's name."""


def _find_store(output: Settings) -> tuple[str, dict[str, str]]:
    """Return the URI prefix of the keys of an output in a local folder or S3 bucket, and the properties with which
    pyiceberg accesses the store. The properties may contain secrets. Raise ConfigError for other stores.
    """
    if output.s3 is None:
        root = output.storage_root
        if root is None:
            raise ConfigError("table=iceberg needs an output in a folder or on S3")
        return f"file://{root.absolute()}/", {}
    s3 = output.s3
    properties = {"s3.region": s3.region}
    if s3.endpoint_url is not None:
        properties["s3.endpoint"] = s3.endpoint_url
    is_in_path = s3.path_style if s3.path_style is not None else s3.compatibility != "aws"
    properties["s3.force-virtual-addressing"] = str(not is_in_path and s3.endpoint_url is None).lower()
    for name, secret in (
        ("s3.access-key-id", s3.credentials.access_key_id),
        ("s3.secret-access-key", s3.credentials.secret_access_key),
        ("s3.session-token", s3.credentials.session_token),
    ):
        if secret is not None:
            properties[name] = secret.get_secret_value()
    return f"s3://{s3.bucket_name}/", properties


class IcebergTable:
    """Iceberg table of published files. This class adds them, and removes files that pipelines delete. Not thread-safe.

    For each commit log, a table property has the number of the last entry whose files are in the table. One Iceberg
    commit adds files and updates the number. The commit fails if another commit came first. The retry then sees the new
    number, and adds no file twice.
    """

    def __init__(self, catalog: str, name: str, properties: Mapping[str, str], base: str) -> None:
        """``catalog`` is the catalog's name. pyiceberg's own configuration may have more properties under this name.
        ``base`` is the URI prefix of the store's keys."""
        self._catalog, self._name, self._properties, self._base = catalog, name, properties, base
        self._entered: dict[str, int] = {}

    def check(self) -> None:
        """Raise ConfigError or StoreUnavailableError if it is not possible to add files to the table now."""
        self._do(self._load)

    def enter(self, log: CommitLog) -> None:
        """Add published files of ``log`` that the table lacks. At the first call, or after the table was dropped, first
        add the files of linked generations that have ended.
        """
        if self._entered.get(log.folder, -1) >= _last(log):
            return

        def enter_all(catalog: Catalog) -> None:
            if log.folder not in self._entered or self._number(self._load(catalog), log) < 0:
                for other in _ended_logs(log):
                    try:
                        self._enter(catalog, other)
                    except FencedError as error:
                        # Raise another error, because a new entry in the log ``other`` does not fence the driver of
                        # ``log``.
                        raise _ConflictError(f"{error}: read that log again") from error
            self._enter(catalog, log)

        self._do(enter_all)

    def refuse_rewritten(self, log: CommitLog, keys: Iterable[str] | None = None) -> None:
        """Raise ConfigError if another writer has moved rows of the files ``keys`` to other files. Without ``keys``,
        check all files of the log.
        """
        self._do(lambda catalog: self._find_going(self._load(catalog), log, keys))

    def replace(self, old: CommitLog, new: CommitLog) -> None:
        """In one snapshot, remove the files that the log ``old`` lists as replaced, and add all published files of the
        log ``new``."""
        gone = [entry for entry in old.entries() if effects(entry).gives]
        keys = {key for entry in gone for key in _keys(entry.windows)}
        number = max((entry.number for entry in gone), default=-1)

        def swap(catalog: Catalog) -> None:
            table = self._load(catalog)
            is_done = table is not None and self._number(table, old, _REMOVED) >= number
            pending = _list_pending(new, self._number(table, new), new.state.number)
            added = [key for _, files in pending for key in files]
            going = [] if is_done else self._find_going(table, old, keys)
            properties = {} if is_done else {self._property(old, _REMOVED): str(number)}
            if pending:
                properties[self._property(new)] = str(pending[-1][0])
            if added or (table is not None and not is_done):
                self._overwrite(table or self._create(catalog, added), added, going, properties, new)

        self._do(swap)
        self.enter(old)

    def rows(self, log: CommitLog, topic: str) -> TableRows:
        """Return the rows of a topic in the current snapshot. Raise an error if the table does not exist, lacks
        committed files, or lacks a column that is needed to restore the records unchanged.
        """
        files = "leave out table=iceberg to restore from the pipeline's files"
        with self._translate_errors(is_read=True), self._open() as catalog:
            table = self._find(catalog)
            if table is None:
                raise ResourceNotFoundError(f"the catalog {self._catalog} has no table {self._name}: {files}")
            number = self._number(table, log)
            if _list_pending(log, number, _last(log)):
                raise ConfigError(
                    f"the table {self._name} has the files of entries up to {number} of the commit log, but not up to "
                    f"{_last(log)}: run the pipeline once, or {files}"
                )
            types = {column.name: str(column.field_type) for column in table.schema().fields}
            wrong = [name for name, kinds in _COLUMNS.items() if not types.get(name, "").startswith(kinds)]
            if wrong:
                raise ConfigError(
                    f"the table {self._name} cannot restore records unchanged ({', '.join(wrong)}: missing or of "
                    f"another type): {files}"
                )
            return TableRows(table, topic, partial(self._translate_errors, is_read=True))

    def take_out(self, log: CommitLog) -> None:
        """Remove all files of a dropped generation of the output."""

        def clear(catalog: Catalog) -> None:
            table = self._load(catalog)
            if table is None or self._number(table, log, _REMOVED) >= log.state.number:
                return
            # Commit even if there is nothing to remove, so that a commit of a suspended driver conflicts with it.
            going = self._find_going(table, log, None)
            self._overwrite(table, [], going, {self._property(log, _REMOVED): str(log.state.number)}, log)

        self._do(clear)

    def _enter(self, catalog: Catalog, log: CommitLog) -> None:
        table, last = self._load(catalog), _last(log)
        number = self._number(table, log)
        pending = _list_pending(log, number, last)
        is_first = number < 0
        while pending:
            piece = _first_piece(pending)
            pending = pending[len(piece) :]
            files = [key for _, keys in piece for key in keys]
            table = table or self._create(catalog, files)
            log.check_alone()
            self._append(table, files, piece[-1][0], log, is_first=is_first)
            table, is_first = self._load(catalog), False
            if self._number(table, log) != piece[-1][0]:
                raise _ConflictError(f"the table {self._name} was dropped while files were added to it")
        self._entered[log.folder] = last

    def _append(self, table: Table, keys: Sequence[str], number: int, log: CommitLog, *, is_first: bool) -> None:
        paths = [self._path(key) for key in keys]
        properties = {self._property(log): str(number)}
        if is_first:
            # Files that were replaced before this first commit never get into the table. So record that they are
            # removed already.
            last_given = max((entry.number for entry in log.entries() if effects(entry).gives), default=-1)
            properties[self._property(log, _REMOVED)] = str(last_given)
        with table.transaction() as transaction:
            _widen(transaction, table, paths)
            transaction.set_properties(properties)
            # Check for duplicates in the first commit, because a user may have added files to the table by hand.
            transaction.add_files(paths, _snapshot_properties(log, number), check_duplicate_files=is_first)

    def _overwrite(
        self, table: Table, added: Sequence[str], going: Sequence[Any], properties: Mapping[str, str], log: CommitLog
    ) -> None:
        arrow = importlib.import_module("pyiceberg.io.pyarrow")
        paths = [self._path(key) for key in added]
        with table.transaction() as transaction:
            _widen(transaction, table, paths)
            mapping = table.name_mapping() or table.schema().name_mapping
            transaction.set_properties({"schema.name-mapping.default": mapping.model_dump_json(), **properties})
            said = _snapshot_properties(log, log.state.number)
            with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
                for file in arrow.parquet_files_to_data_files(table.io, transaction.table_metadata, iter(paths)):
                    snapshot.append_data_file(file)
                for file in going:
                    snapshot.delete_data_file(file)

    def _find_going(self, table: Table | None, log: CommitLog, keys: Iterable[str] | None) -> list[Any]:
        """Return the table's data files with these keys. If ``keys`` is None, return all data files that the log added
        to the table. Raise ConfigError if the table has lost a file that this pipeline added.
        """
        number = self._number(table, log)
        if table is None or number < 0:
            return []
        expected = _keys_between(log, number, self._number(table, log, _REMOVED))
        if keys is not None:
            expected &= set(keys)
        paths = {self._path(key) for key in expected}
        files = {task.file.file_path: task.file for task in table.scan().plan_files()} if paths else {}
        missing = sorted(paths - files.keys())
        if missing:
            others = len(missing) - 1
            more = f" and {others} other file{'s' * (others > 1)} of this pipeline" if others else ""
            raise ConfigError(
                f"the table {self._name} has lost {missing[0]}{more}; another writer may have moved the rows to new "
                "files: drop the table in its catalog and restart; the pipeline re-creates it from the commit log"
            )
        return [files[path] for path in sorted(paths)]

    def _path(self, key: str) -> str:
        """Return the URI of an object; raise ConfigError if engines would parse the URI differently."""
        if "#" in self._base + key or "?" in self._base + key:
            raise ConfigError(f"{self._base}{key} cannot be in a table: engines read names with # or ? as other names")
        return f"{self._base}{key}"

    def _property(self, log: CommitLog, kind: str = _NUMBER) -> str:
        return f"{kind}{self._path(log.folder).rstrip('/')}"

    def _number(self, table: Table | None, log: CommitLog, kind: str = _NUMBER) -> int:
        text = "-1" if table is None else table.properties.get(self._property(log, kind), "-1")
        try:
            return int(text)
        except ValueError:
            name = self._property(log, kind)
            raise ConfigError(f"the property {name} of the table {self._name} is not a number: fix it") from None

    def _find(self, catalog: Catalog) -> Table | None:
        errors = importlib.import_module("pyiceberg.exceptions")
        try:
            return catalog.load_table(self._name)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def _load(self, catalog: Catalog) -> Table | None:
        table = self._find(catalog)
        if table is None:
            return None
        if not table.spec().is_unpartitioned():
            raise ConfigError(
                f"the table {self._name} is partitioned, but files of pipelines do not follow its partitions: name "
                "another table"
            )
        # Turn off pyiceberg's own retries in this copy in memory, because they would not check the entry number again.
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def _create(self, catalog: Catalog, keys: Sequence[str]) -> Table:
        io_module = importlib.import_module("pyiceberg.io")
        errors = importlib.import_module("pyiceberg.exceptions")
        path = self._path(keys[0])
        schema = _arrow_schema(io_module.load_file_io(self._properties, path), path)
        namespace = self._name.rpartition(".")[0]
        with contextlib.suppress(errors.TableAlreadyExistsError):
            catalog.create_namespace_if_not_exists(namespace)
            catalog.create_table(self._name, schema)
        table = self._load(catalog)
        if table is None:
            raise StoreUnavailableError(f"the table {self._name} has disappeared right after it was created")
        return table

    def _do(self, step: Callable[[Catalog], object]) -> None:
        """Run a step that commits to the Iceberg table, with a newly opened catalog. Repeat the step if another commit
        came first.
        """
        for attempt in range(_ATTEMPTS):
            try:
                with self._translate_errors(), self._open() as catalog:
                    step(catalog)
            except _ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    @contextlib.contextmanager
    def _open(self) -> Generator[Catalog]:
        with Extra("table=iceberg", "iceberg"):
            module = importlib.import_module("pyiceberg.catalog")
            catalog = module.load_catalog(self._catalog, **self._properties)
        with contextlib.closing(catalog):
            self._check_conflicts(catalog)
            yield catalog

    def _check_conflicts(self, catalog: Any) -> None:
        """Let the catalog report a conflict only if the snapshot is not in the table.

        If a proxy repeats a request whose response was lost, the repetition conflicts with the commit itself. After a
        conflict, pyiceberg deletes the snapshot's manifests, which would make the table unreadable.
        """
        module, commit = importlib.import_module("pyiceberg.table"), catalog.commit_table
        errors = importlib.import_module("pyiceberg.exceptions")

        def commit_table(table: Table, requirements: Sequence[Any], updates: Sequence[Any]) -> Any:
            try:
                return commit(table, requirements, updates)
            except errors.CommitFailedException:
                made = [update.snapshot.snapshot_id for update in updates if update.action == "add-snapshot"]
                present = self._find(catalog)
                if present is None or not any(map(present.snapshot_by_id, made)):
                    raise
                return module.CommitTableResponse(
                    metadata=present.metadata, metadata_location=present.metadata_location
                )

        catalog.commit_table = commit_table

    @contextlib.contextmanager
    def _translate_errors(self, *, is_read: bool = False) -> Generator[None]:
        try:
            yield
        except TieredStoreError:
            raise
        except Exception as error:  # noqa: BLE001  catalogs raise errors of many libraries
            raise self._error(error, is_read=is_read) from None

    def _error(self, error: Exception, *, is_read: bool) -> TieredStoreError:
        text = str(error)
        for value in self._properties.values():
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "…")
        kinds = {kind.__name__ for kind in type(error).__mro__}
        says = f"{type(error).__name__}: {excerpt(redact(text), 400)}"
        if kinds & _DENIED:
            return AccessDeniedError(f"the catalog of the table {self._name} denies access: {says}")
        if is_read and "equality deletes" in text:
            return ConfigError(
                f"the table {self._name} has equality deletes, which pyiceberg cannot apply: compact the table with an "
                "engine that can, such as Spark or Flink"
            )
        if is_read and isinstance(error, FileNotFoundError):
            return StoreError(
                f"a file of the table {self._name} has disappeared: {says}; the table may have been compacted "
                "meanwhile: start again"
            )
        if isinstance(error, FileNotFoundError):
            return StoreError(f"a committed file has disappeared and cannot be added to the table {self._name}: {says}")
        if kinds & {"CommitFailedException", "NoSuchTableError"}:
            return _ConflictError(f"other writers kept changing the table {self._name}: {says}")
        if kinds & _AWAY and not kinds & _PERMANENT:
            return StoreUnavailableError(f"the catalog or a store of the table {self._name} is unavailable: {says}")
        if is_read:
            return StoreError(f"the table {self._name} cannot be read: {says}")
        return StoreError(
            f"the table {self._name} rejects the pipeline's files: {says}; fix the table or "
            "table.iceberg.*, or leave out table=iceberg"
        )


class _ConflictError(StoreUnavailableError):
    """Another writer committed to the table first."""


def table_of(pipeline: Pipeline) -> IcebergTable | None:
    """Return the Iceberg table that the settings name, or None if they name none."""
    own = pipeline.own.table
    if own.kind == "none":
        return None
    base, properties = _find_store(pipeline.output)
    return IcebergTable(own.catalog, own.name, properties | dict(pipeline.catalog), base)


def _last(log: CommitLog) -> int:
    """Return the number of the last log entry whose files may be in the Iceberg table now.

    If a backfill replaces files, the table gets the new files only after the replacement.
    """
    state = log.state
    if state.is_filled or log.entry(state.backfill).other < 0:
        return state.number
    return state.backfill


def _ended_logs(log: CommitLog) -> list[CommitLog]:
    """Return the logs of linked generations, in the order of their numbers. Leave out a generation that still reads new
    records, and a backfill whose files are not all published.
    """
    others = Family(log).read_others()
    return [
        other
        for _, other in sorted(others.items())
        if other.state.life is Life.SEALED or (other.state.life is Life.FILLED and other.state.unpublished < 0)
    ]


def _list_pending(log: CommitLog, number: int, last: int) -> list[tuple[int, list[str]]]:
    """Return the files that the entries after ``number`` and up to ``last`` added, by entry. Leave out files that later
    entries removed."""
    if number >= last:
        return []
    came: list[tuple[int, list[str]]] = []
    gone: set[str] = set()
    for entry in log.entries(number + 1):
        does = effects(entry)
        gone.update(_keys(does.gives))
        if does.adds and entry.number <= last:
            came.append((entry.number, _keys(does.adds)))
    left = [(at, [key for key in keys if key not in gone]) for at, keys in came]
    return [(at, keys) for at, keys in left if keys]


def _keys_between(log: CommitLog, number: int, removed: int) -> set[str]:
    """Return the keys of files that are in a table: the files of entries up to ``number``, without the files that
    another generation had replaced by entry ``removed``.
    """
    taken: set[str] = set()
    for entry in log.entries():
        does = effects(entry)
        if entry.number <= number:
            taken.update(_keys(does.adds))
        if entry.number <= removed:
            taken.difference_update(_keys(does.gives))
    return taken


def _keys(windows: Sequence[WrittenWindow]) -> list[str]:
    return [file.key for window in windows for file in window.data_files]


def _first_piece(pending: Sequence[tuple[int, list[str]]]) -> Sequence[tuple[int, list[str]]]:
    """Return the entries for the next Iceberg commit: normally only the first. If more than ``_FILES_AT_ONCE`` entries
    are pending, return several entries, with at most ``_FILES_AT_ONCE`` files together.
    """
    count, files = 1, len(pending[0][1])
    while count < len(pending) and len(pending) > _FILES_AT_ONCE and files + len(pending[count][1]) <= _FILES_AT_ONCE:
        files += len(pending[count][1])
        count += 1
    return pending[:count]


def _snapshot_properties(log: CommitLog, number: int) -> dict[str, str]:
    return {
        "tieredstore.pipeline": log.pipeline,
        "tieredstore.generation": str(log.generation),
        "tieredstore.commit": str(number),
    }


def _widen(transaction: Transaction, table: Table, paths: Sequence[str]) -> None:
    """Add columns that the files have and the table lacks, and widen column types as Iceberg allows."""
    schemas: list[pa.Schema] = []
    for path in paths:
        schema = _arrow_schema(table.io, path)
        if schema not in schemas:
            schemas.append(schema)
    with transaction.update_schema() as update:
        for schema in schemas:
            update.union_by_name(schema)


def _arrow_schema(io: FileIO, path: str) -> pa.Schema:
    parquet = importlib.import_module("pyarrow.parquet")
    with io.new_input(path).open() as stream:
        schema: pa.Schema = parquet.read_schema(stream)
        return schema
