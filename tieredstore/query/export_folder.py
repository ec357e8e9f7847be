"""Protects an export's folder: a topic has one export at a time, and all its files have the same types and
isolation."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
from pydantic import TypeAdapter

from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.query.topic_columns import topic_schema
from tieredstore.versions import EXPORT

if TYPE_CHECKING:
    from tieredstore.query.topic_read import ReadPlan
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery

_logger: Final = logging.getLogger(__name__)


_HOME: Final = "_tieredstore"
"""The folder for the note about an export. Its name begins with an underscore, so that Spark, Hive and Arrow skip
it."""

_NOTE: Final = TypeAdapter(dict[str, object])
_LOSS: Final = "on_data_loss"
_WAY_OUT: Final = "export into another folder, or delete them"


@contextmanager
def export_folder(folder: Path, query: LogQuery, snapshot: LogSnapshot, plan: ReadPlan, ending: str) -> Generator[None]:
    """Lock the folder for one export of a topic in one format, and remove incomplete files of killed exports.

    An export does not replace the files of earlier exports, so all files must have the same topic, types and isolation.
    For this, the first export records them in a note in ``_tieredstore/export/``.

    Raise ConfigError if another export of the topic is running, or if the note records another topic, other types or
    another isolation.

    Also raise ConfigError if this export must fail on data loss, but an earlier export had ``on_data_loss="report"``,
    because the files of the earlier export may lack records. Raise OSError if the folder cannot be used.
    """
    kind = _kind(query, snapshot, plan)
    note = folder / _HOME / "export" / f"{query.topic}.{ending}.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    with note.open("a+b") as file:
        _lock(file, folder, query.topic)
        file.seek(0)
        loss, there = query.on_data_loss, dict[str, object]()
        if noted := file.read():
            there.update(_parse(noted, note))
            _compare(there, kind, folder)
            if there.get(_LOSS) == "report" and loss == "fail":
                raise ConfigError(
                    f"files in {folder} may lack records, because an earlier export skipped lost records: "
                    f"{query.words.accept_loss} again, {_WAY_OUT}"
                )
        if not noted or (loss == "report" and there.get(_LOSS) != loss):
            file.truncate(0)
            file.write(EXPORT.to_bytes({**kind, _LOSS: loss}, indent=2))
            file.flush()
        for draft in folder.glob(f".{query.topic}-*.{ending}.part"):
            draft.unlink(missing_ok=True)
        yield


def _kind(query: LogQuery, snapshot: LogSnapshot, plan: ReadPlan) -> dict[str, str]:
    ids = {str(one.stored_partition.topic_id) for one in snapshot.logs.values()}
    schema = topic_schema(types=plan.types)
    return {
        "topic": query.topic,
        "topic_id": ",".join(sorted(ids)),
        "isolation": query.isolation,
        "key": _type_name(schema.field("key").type),
        "value": _type_name(schema.field("value").type),
    }


def _type_name(kind: pa.DataType) -> str:
    """Describe a type for the note about an export. Leave out a schema's fields, because they may change between
    exports.
    """
    return "columns" if pa.types.is_struct(kind) else str(kind)


def _lock(file: BinaryIO, folder: Path, topic: str) -> None:
    """Lock the file until it is closed or the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another export of {topic} is writing into {folder}: wait for its end") from None
    except OSError:
        _logger.debug("%s is on a file system without locks", folder, exc_info=True)


def _parse(noted: bytes, note: Path) -> Mapping[str, object]:
    try:
        return EXPORT.parse(_NOTE, noted, str(note))
    except CorruptDataError as error:
        raise ConfigError(f"{note} is damaged: delete it if all files beside it are of this export") from error


def _compare(there: Mapping[str, object], wanted: Mapping[str, str], folder: Path) -> None:
    if there.get("topic_id") != wanted["topic_id"]:
        raise ConfigError(
            f"the files in {folder} are of another topic {wanted['topic']}, with the id {there.get('topic_id')}; this "
            f"export reads the id {wanted['topic_id']}: {_WAY_OUT}"
        )
    for name, value in wanted.items():
        if there.get(name) != value:
            raise ConfigError(
                f"the files in {folder} have {name} {there.get(name)}, but this export has {value}: {_WAY_OUT}"
            )
