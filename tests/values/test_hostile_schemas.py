"""Hostile schemas and messages: they never kill their reader, and never cost more than their size justifies.

Each case runs in a separate process, with limits on memory and CPU time. tests/cli/records/test_hostile_messages.py
tests each way to read such messages.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.damage.hostile_schemas import COLUMNS, LINKED, READER, SCHEMAS, linked, record
from tests.support.fresh_python import run_fresh
from tests.support.network.schema_registry_server import written
from tieredstore.values import Avro
from tieredstore.values.avro import AvroData

pytestmark = pytest.mark.slow

CHILD = """
import os, resource, sys
import fastavro, pyarrow
from tests.support.damage.hostile_schemas import COLUMNS, GOOD, READER, SCHEMAS
from tests.support.records.protobuf_messages import doubling_set
from tests.support.network.schema_registry_server import framed
from tieredstore.errors import ConfigError
from tieredstore.pipelines.files.columns import OfRegistry
from tieredstore.pipelines.files.formats import Parquet
from tieredstore.values import Avro
from tieredstore.values.avro import AvroData
from tieredstore.values.protobuf import Protobuf

def read(name):
    schemas = {1: READER, 2: SCHEMAS[name].written_by()}
    messages = [framed(1, GOOD), framed(2, SCHEMAS[name].data), framed(1, GOOD)]
    column = pyarrow.array(messages, pyarrow.binary())
    rows = Avro(READER, schemas.__getitem__, "null").convert(column, lambda row: "")
    assert rows.to_pylist() == [{"id": 7}, None, {"id": 7}], rows
    # A pipeline by schemas of a registry sets the message aside.
    records = pyarrow.record_batch([column], ["value"])
    _, bad = OfRegistry(Parquet(), schemas.__getitem__).for_window("orders").decode(records)
    # Where nothing is asked of the data but a field, as for a file by time.
    try:
        AvroData(None, schemas.__getitem__).datum(messages[1])
    except ValueError:
        assert list(bad) in ([1], []), bad
    else:
        sys.exit("read")

def refused(name):
    try:
        Avro(COLUMNS[name].written_by()).arrow_type
    except ConfigError:
        return
    sys.exit("taken")

def doubling(_):
    try:
        Protobuf(doubling_set(25), "doubling.M24").arrow_type
    except ConfigError:
        return
    sys.exit("taken")

for what, names in ((read, SCHEMAS), (refused, COLUMNS), (doubling, ["Protobuf"])):
    for name in names:
        if not os.fork():
            resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
            resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
            os.close(2)
            what(name)
            os._exit(0)
        print(name, os.wait()[1], sep=chr(9))
"""


def test_no_schema_and_no_message_ends_the_process() -> None:
    ends = dict(line.split("\t") for line in run_fresh(CHILD).splitlines())
    assert len(ends) == len(SCHEMAS) + len(COLUMNS) + 1
    assert {name: end for name, end in ends.items() if end != "0"} == {}


def test_what_is_honest_of_such_schemas_is_read() -> None:
    tree = record("R", id="long", inner={"type": "array", "items": "R"})
    leaf = {"id": 3, "inner": list[object]()}
    for schema, data, datum in (
        (LINKED, linked(62), 7),
        (tree, written(tree, {"id": 7, "inner": [leaf, {"id": 4, "inner": [leaf]}]}), 7),
        # This is rare but legal: many fields of null, whose data is far shorter than the result.
        (record("R", id="long", **{f"f{at}": "null" for at in range(900)}), written("long", 7), 7),
    ):
        read: Any = AvroData(schema).datum(data)
        assert read["id"] == datum
        rows = Avro(READER, {1: schema}.__getitem__).convert(
            pa.array([b"\0\0\0\0\1" + data], pa.binary()), lambda _: ""
        )
        assert rows.to_pylist() == [{"id": datum}]
