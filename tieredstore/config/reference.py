"""Writes the reference of all properties: ``python -m tieredstore.config.reference > docs/settings.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from pydantic.fields import FieldInfo

from tieredstore.config.clouds import AwsCredentials, AzureSettings, GcsSettings, S3Settings
from tieredstore.config.effects import Effect, effect_of
from tieredstore.config.encryption import PAIRS, EncryptionProperties, KeyPairSettings
from tieredstore.config.endpoint import RULES, EndpointRule, EndpointSettings
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.fields import property_fields
from tieredstore.config.jvm import FAMILIES, OLD_NAMES, JvmProperties
from tieredstore.config.sections import Section, wing_sections
from tieredstore.config.settings import Settings
from tieredstore.config.storage import JAVA_BACKENDS, ProxySettings
from tieredstore.config.uploader import KAFKA, UploaderSettings
from tieredstore.config.values import Kind

_INTRO: Final = r"""# Settings

This page is written by `python -m tieredstore.config.reference`; change the settings, not the page.

Settings have the names of Aiven's Tiered Storage plugin for Apache Kafka. They come from

- a `.properties` file in Java's full syntax: `=`, `:` or blanks between name and value, `#` and `!` comments, lines
  that go on after a `\` at their end, `\n`, `\t` and `\uXXXX` escapes. The file is read as ISO-8859-1, as the broker
  reads it: write other characters as `\uXXXX`. A name given twice has its last value;
- a mapping in Python (`settings_from`), or the options of a tool that hands on names and values.

**Prefix.** A broker's `server.properties` works as it is. If a source has properties that start with `rsm.config.` (or
with what its `remote.log.storage.manager.impl.prefix` says), only those are read, without the prefix; all others are
the broker's. If it has none, every property is read as ours, and the names are those below.

**Values** are trimmed as the broker trims them. One pair of double quotes around a value is taken off, which leaves
blanks inside of them as they are; the JVM plugin keeps the quotes, so don't write them around `key.prefix`. Lists are
separated by commas. `true` and `false` may be written in any case; the words of a choice may not.

**Paths** that are relative start from the folder of the settings file (of a mapping: from `base_dir`, else the working
directory). Whether a path exists is checked when it is used.

**Unknown names** are errors that say the nearest known one (the plugin ignores them in silence). So are old names:
{old_names}.

**Trust.** A settings file may name a class of its own (`storage.backend.class`), which is imported and runs with your
rights: read only files of people whose code you would run.

**Secrets** (type password) are never part of a message or of the text of a settings object.

In the tables "–" as default means that there is none: the property must be set once its store or cache is selected.
The last column says what a property does here: *in effect*; *accepted without effect* (known, so that a broker's file
works as it is, and named once in the log at level INFO); or *refused* (setting it is an error, because ignoring it
would change an identity or a meaning). The properties of stores that are not selected are known by name, and their
values are not looked at.
"""

_HEADER: Final = "| name | type | default | valid | meaning | here |\n|---|---|---|---|---|---|"

_STORES: Final = "`storage.backend.class` takes our short names and the plugin's Java classes:"

_OWN_STORE: Final = """A Python class of your own gets every `storage.*` property of the source, whatever its name, as
`Settings.storage_options`."""


SECTIONS: Final = (
    Section("Segments and the store", "", (Settings,)),
    Section("Encryption", "", (EncryptionProperties,)),
    Section(
        "Key pairs",
        "For each `<id>` that `encryption.key.pairs` lists; for an id that it does not list they are errors.",
        (KeyPairSettings,),
        f"{PAIRS}.<id>.",
    ),
    Section(
        "Amazon S3",
        "With `storage.backend.class` `s3`. A credentials file excludes an access key; with neither, the SDK decides.",
        (S3Settings, AwsCredentials),
    ),
    Section(
        "Google Cloud Storage",
        "With `storage.backend.class` `gcs`. Exactly one of the three `storage.gcs.credentials.*` must be set.",
        (GcsSettings,),
    ),
    Section(
        "Azure Blob Storage",
        "With `storage.backend.class` `azure`: a connection string alone, or an account name or SAS token without it.",
        (AzureSettings,),
    ),
    Section("SOCKS5 proxy", "Host and port are required once any of these is set.", (ProxySettings,)),
    Section("Reading", "", (FetchSettings, ManifestCacheSettings, IndexCacheSettings, ChunkCacheSettings)),
    Section(
        "The uploader",
        f"Read by `tieredstore uploader` alone ([uploader.md](uploader.md)), with and without the prefix; `{KAFKA}*` "
        "are properties of the Kafka client ([live.md](live.md)).",
        (UploaderSettings,),
    ),
    Section(
        "Where topics lie",
        "Read by all ([layout.md](layout.md)), with and without the prefix. Not of the plugin.",
        (EndpointSettings,),
    ),
    Section(
        "Rules of places",
        f"For each name that `{RULES}` lists. `storage.*` under it are properties of that store which are other ones "
        "than those of the settings.",
        (EndpointRule,),
        f"{RULES}.<name>.",
    ),
)
"""The core's tables, in the page's order."""

_LAST: Final = Section("Of the JVM plugin only", "", (JvmProperties,))


def all_sections() -> tuple[Section, ...]:
    """All tables, in the page's order: those of the installed wings behind the core's."""
    return *SECTIONS, *wing_sections(), _LAST


def reference() -> str:
    """The text of ``docs/settings.md``."""
    old = ", ".join(f"`{before}*` is `{after}*` today" for before, after in OLD_NAMES.items())
    stores = [f"- `{name}`: `{java}`" for java, name in JAVA_BACKENDS.items()]
    lines = [_INTRO.replace("{old_names}", old), _STORES, "", *stores, "- `memory`: no Java class", "", _OWN_STORE]
    for section in all_sections():
        lines += ["", f"## {section.title}", ""]
        lines += [section.intro, ""] if section.intro else []
        lines += [_HEADER, *_rows(section)]
    lines += [_family_row(beginning, meaning) for beginning, meaning in FAMILIES.items()]
    return "\n".join(lines) + "\n"


def _rows(section: Section) -> Iterator[str]:
    for group in section.groups:
        for name, info, kind in property_fields(group):
            yield _row(section.under + name, kind, shown_default(info), info.description or "")


def _row(name: str, kind: Kind, default: str, meaning: str) -> str:
    return f"| `{name}` | {kind.type} | {default} | {kind.valid} | {meaning} | {effect_of(name).value} |"


def _family_row(beginning: str, meaning: str) -> str:
    return f"| `{beginning}*` | string | | | {meaning} | {Effect.WITHOUT_EFFECT.value} |"


def shown_default(info: FieldInfo) -> str:
    """As a cell of a table has it."""
    if info.is_required():
        return "–"
    if info.default is None:
        return "not set"
    if info.default in ("", ()):
        return "empty"
    return f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
