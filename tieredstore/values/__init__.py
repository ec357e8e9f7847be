"""Types of keys and values, which become Arrow columns: bytes, text, JSON and Avro. Uses no store and no network."""

from __future__ import annotations

from tieredstore.installation import Extra

with Extra("decoding keys and values", "arrow"):
    from tieredstore.values.avro import Avro, AvroSchema, ReferringSchema, SchemaLookup, arrow_type_of
    from tieredstore.values.base import Binary, InvalidValues, OnInvalid, Place, Text, ValueType
    from tieredstore.values.json_text import Json

__all__ = [
    "Avro",
    "AvroSchema",
    "Binary",
    "InvalidValues",
    "Json",
    "OnInvalid",
    "Place",
    "ReferringSchema",
    "SchemaLookup",
    "Text",
    "ValueType",
    "arrow_type_of",
]
