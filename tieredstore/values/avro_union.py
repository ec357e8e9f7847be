"""The union of Avro schemas: one schema that can read the data of each schema, with Avro's own promotions of types.

https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from tieredstore.values.avro_bounds import AvroField, AvroObject, AvroType, Named, named_types

_NUMBERS: Final = ("int", "long", "float", "double")
"""The numeric types, in an order in which Avro promotes each to all types after it."""

_TEXTS: Final = frozenset({"string", "bytes"})


class CannotUniteError(ValueError):
    """The reason why two schemas have no union."""


def unite_schemas(first: AvroType, second: AvroType) -> AvroType:
    """Return a schema that can read the data of both schemas; raise CannotUniteError if there is none. Both must be as
    fastavro parsed them.

    A record gets the fields of both schemas. A field that only one schema has keeps its default or, without a default,
    becomes nullable with the default null. An enum gets the symbols of both.
    """
    return _Union(named_types(first), named_types(second)).of(first, second)


class _Union:
    def __init__(self, first: Named, second: Named) -> None:
        self._first, self._second = first, second
        self._defined: set[str] = set()

    def of(self, first: AvroType | None, second: AvroType | None) -> AvroType:
        """Unite two types. If they are the types of a field that one schema lacks, that schema's type is None."""
        if isinstance(first, list) or isinstance(second, list):
            return self._of_unions(_branches(first), _branches(second))
        name = self._name_of(first, self._first) or self._name_of(second, self._second)
        if name is not None:
            return self._of_named(name, first, second)
        return self._of_others(first, second)

    def _name_of(self, schema: AvroType | None, named: Named) -> str | None:
        name = schema.get("name") if isinstance(schema, dict) else schema
        return name if isinstance(name, str) and name in named else None

    def _of_named(self, name: str, first: AvroType | None, second: AvroType | None) -> AvroType:
        """Unite records, enums and fixed types of the same name. One of the two may be None."""
        for schema, named in ((first, self._first), (second, self._second)):
            if schema is not None and self._name_of(schema, named) != name:
                raise CannotUniteError(f"{name} has different types in them")
        if name in self._defined:
            return name
        self._defined.add(name)
        one, other = self._first.get(name), self._second.get(name)
        if one is None or other is None:
            return self._define(one, other)
        if one["type"] != other["type"]:
            raise CannotUniteError(f"{name} has different types in them")
        match one["type"]:
            case "enum":
                symbols = list(dict.fromkeys([*one["symbols"], *other["symbols"]]))
                return {**_plain(one), "symbols": symbols}
            case "fixed":
                if (one["size"], one.get("logicalType")) != (other["size"], other.get("logicalType")):
                    raise CannotUniteError(f"{name} has different sizes in them")
                return _plain(one)
            case _:
                return self._define(one, other)

    def _define(self, one: AvroObject | None, other: AvroObject | None) -> AvroObject:
        schema = one or other
        assert schema is not None
        if schema["type"] not in {"record", "error"}:
            return _plain(schema)
        is_alone = one is None or other is None
        return {**_plain(schema), "fields": self._fields(_fields(one), _fields(other), is_alone=is_alone)}

    def _fields(
        self, first: Mapping[str, AvroField], second: Mapping[str, AvroField], *, is_alone: bool
    ) -> list[AvroField]:
        fields: list[AvroField] = []
        for name in dict.fromkeys([*first, *second]):
            one, other = first.get(name), second.get(name)
            field = (one or second[name]).copy()
            field["type"] = self.of(one and one["type"], other and other["type"])
            if (one is None or other is None) and not is_alone and "default" not in field:
                # Data that were written with the other schema lack this field, so the field must accept null.
                branches = [branch for branch in _branches(field["type"]) if branch != "null"]
                field["type"], field["default"] = ["null", *branches], None
            elif "default" in field and "null" in _branches(field["type"]) and field["default"] is not None:
                # Put null last, because Avro requires that the type of the default value comes first.
                field["type"] = [*(branch for branch in _branches(field["type"]) if branch != "null"), "null"]
            fields.append(field)
        return fields

    def _of_unions(self, first: Sequence[AvroType], second: Sequence[AvroType]) -> AvroType:
        """Unite two unions, each of null and one other type. Refuse larger unions, because Arrow has no columns for
        them."""
        ones = [branch for branch in first if branch != "null"]
        others = [branch for branch in second if branch != "null"]
        if len(ones) > 1 or len(others) > 1:
            raise CannotUniteError("a union of several types cannot become a column")
        one, other = next(iter(ones), None), next(iter(others), None)
        return "null" if one is None and other is None else ["null", self.of(one, other)]

    def _of_others(self, first: str | AvroObject | None, second: str | AvroObject | None) -> AvroType:
        if first is None or second is None:
            alone = first or second
            assert alone is not None
            return self._of_one(alone, is_first=second is None)
        if first == "null" or second == "null":
            return self._of_unions(_branches(first), _branches(second))
        one, other = _kind(first), _kind(second)
        if isinstance(first, dict) and isinstance(second, dict):
            if one == other == "array":
                return {**_plain(first), "items": self.of(first["items"], second["items"])}
            if one == other == "map":
                return {**_plain(first), "values": self.of(first["values"], second["values"])}
        if _logical(first) != _logical(second):
            raise CannotUniteError(f"a {one} and a {other} of different logical types")
        if one == other:
            return first
        if one in _NUMBERS and other in _NUMBERS and not _logical(first):
            return max(one, other, key=_NUMBERS.index)
        if frozenset({one, other}) == _TEXTS and not _logical(first):
            return "bytes"
        raise CannotUniteError(f"a {one} and a {other}")

    def _of_one(self, schema: str | AvroObject, *, is_first: bool) -> AvroType:
        """Return a type that only one schema has. Replace the inner type of an array or map by the union of this inner
        type with None, so that the union defines each named type only once.
        """

        def inside(inner: AvroType) -> AvroType:
            return self.of(inner, None) if is_first else self.of(None, inner)

        if isinstance(schema, dict) and schema["type"] == "array":
            return {**_plain(schema), "items": inside(schema["items"])}
        if isinstance(schema, dict) and schema["type"] == "map":
            return {**_plain(schema), "values": inside(schema["values"])}
        return schema


def _branches(schema: AvroType | None) -> list[AvroType]:
    if schema is None:
        return []
    return schema if isinstance(schema, list) else [schema]


def _kind(schema: str | AvroObject) -> str:
    return schema["type"] if isinstance(schema, dict) else schema


def _logical(schema: str | AvroObject) -> tuple[object, ...] | None:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    return schema["logicalType"], schema.get("precision"), schema.get("scale")


def _plain(schema: AvroObject) -> AvroObject:
    """Return an object without fastavro's own fields, so that fastavro parses the new schema again."""
    return cast("AvroObject", {name: part for name, part in schema.items() if not name.startswith("__")})


def _fields(schema: AvroObject | None) -> Mapping[str, AvroField]:
    return {} if schema is None else {field["name"]: field for field in schema["fields"]}
