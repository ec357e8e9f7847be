"""The page of all settings, from the fields that declare them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pydantic.fields import FieldInfo

from tieredstore.config.clouds import AwsCredentials, AzureSettings, GcsSettings, S3Settings
from tieredstore.config.encryption import PAIRS, EncryptionProperties, KeyPairSettings
from tieredstore.config.endpoint import RULES, EndpointRule, EndpointSettings
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.fields import SettingsSection, property_fields, wing_sections
from tieredstore.config.jvm import FAMILIES, OLD_NAMES, JvmProperties
from tieredstore.config.pinterest import TABLE
from tieredstore.config.properties import Effect, effect_of
from tieredstore.config.settings import Settings
from tieredstore.config.storage import JAVA_BACKENDS, ProxySettings

_INTRO: Final = r"""# Settings

For authors of settings files. `make docs` generates this page.

```properties
# store.properties
storage.backend.class=s3
storage.s3.bucket.name=logs
storage.s3.region=eu-north-1
chunk.size=4194304
compression.enabled=true
```

The names are those of Aiven's Tiered Storage plugin for Apache Kafka. The plugin does not have the properties
marked with *.

- **Files** are ISO-8859-1, as Kafka reads them: write other characters as `\uXXXX`. If a name occurs twice, the last
  value is used.
- **Prefix.** If a file has properties that begin with `rsm.config.` (or with its
  `remote.log.storage.manager.impl.prefix`), only those are read, without the prefix.
- **Values.** One pair of double quotes around a value is removed. The plugin keeps the quotes, so do not quote
  `key.prefix`. Commas separate the items of a list. Times (`.ms`) are in milliseconds.
- **Paths** are relative to the folder of the settings file.
- **Unknown names** are errors. So are old names: {old_names}.
- **Trust.** A Python class that a file names runs with your rights. Read only files whose authors you trust.

The second column has the type (text if there is none), the default as `code` (unset, empty or `false` if there is
none), and the allowed values. "Required" means that the store or cache that you choose needs the property. *(No
effect.)* marks properties that are accepted so that a broker's file works. *(Refused.)* marks properties that are
errors.

`storage.backend.class` takes a short name, a Python class (`package.module:Class`) or the plugin's Java class. The
Python class gets every `storage.*` property as `Settings.storage_options`. The Java class is
`io.aiven.kafka.tieredstorage.storage.` and one of
{java}.
"""

HEADER: Final = "name | value | meaning\n---|---|---"
_NOT_THE_PLUGINS: Final = "The plugin lacks this property"
_AT_LEAST: Final = re.compile(r"(-?\d+) or more\b")
_MANY: Final = re.compile(r",? separated by commas")
"""Phrase to remove from descriptions, because the page's introduction says it once for all lists."""
_URL: Final = "http:// or https:// and a host, without user, query and fragment"
_SAYS_NOTHING: Final = {"true or false", "not empty"}
_EFFECTS: Final = {
    Effect.IN_EFFECT: "", Effect.WITHOUT_EFFECT: " *(No effect.)*", Effect.REFUSED: " *(Refused.)*"
}  # fmt: skip

SECTIONS: Final = (
    SettingsSection("Segments and the store", "", (Settings,)),
    SettingsSection("Encryption", "", (EncryptionProperties,)),
    SettingsSection(
        "Key pairs",
        "Each `<id>` in `encryption.key.pairs` has these properties. An id that the list does not name is an error.",
        (KeyPairSettings,),
        f"{PAIRS}.<id>.",
    ),
    SettingsSection(
        "Amazon S3",
        "For `storage.backend.class=s3`. If you set neither an access key nor a file, the SDK finds credentials.",
        (S3Settings, AwsCredentials),
    ),
    SettingsSection(
        "Google Cloud Storage",
        "For `storage.backend.class=gcs`. Set exactly one of the three `storage.gcs.credentials.*`.",
        (GcsSettings,),
    ),
    SettingsSection(
        "Azure Blob Storage",
        "For `storage.backend.class=azure`. Set a connection string, an account name or a SAS token.",
        (AzureSettings,),
    ),
    SettingsSection(
        "SOCKS5 proxy", "If you set one of these properties, also set the host and the port.", (ProxySettings,)
    ),
    SettingsSection("Reading", "", (FetchSettings, ManifestCacheSettings, IndexCacheSettings, ChunkCacheSettings)),
    SettingsSection(
        "Where topics lie",
        "These are read with or without `rsm.config.`; see [stores](stores.md#where-topics-lie). "
        "The plugin has none of them.",
        (EndpointSettings,),
    ),
    SettingsSection(
        "Rules of places",
        f"Each name in `{RULES}` has these properties. `{RULES}.<name>.storage.*` replace `storage.*` for the rule's "
        "store.",
        (EndpointRule,),
        f"{RULES}.<name>.",
    ),
)
"""The core's tables, in the page's order."""

_PACKAGE: Final = "io.aiven.kafka.tieredstorage.storage."
_NONE: Final = Effect.WITHOUT_EFFECT

_JAVA_PLACES: Final = "storage.service.endpoint.provider.class"
_LAST: Final = SettingsSection("Of the JVM plugin only", "", (JvmProperties,))


def all_sections() -> tuple[SettingsSection, ...]:
    """Return all tables in the page's order: the core's, then those of the installed wings."""
    return *SECTIONS, *wing_sections(), _LAST


def render_page() -> str:
    """Return the page."""
    old = ", ".join(f"`{before}*` is now `{after}*`" for before, after in OLD_NAMES.items())
    classes = ", ".join(f"`{java.removeprefix(_PACKAGE)}`" for java in JAVA_BACKENDS)
    lines = [_INTRO.replace("{old_names}", old).replace("{java}", classes).rstrip("\n")]
    for section in all_sections():
        lines += ["", f"## {section.title}", ""]
        lines += [section.intro, ""] if section.intro else []
        lines += [HEADER, *_rows(section)]
    lines += [render_row(f"{name}*", "string", "", "", f"{words}{_EFFECTS[_NONE]}") for name, words in FAMILIES.items()]
    return "\n".join(lines) + "\n"


def _rows(section: SettingsSection) -> Iterator[str]:
    for group in section.groups:
        for name, info, kind in property_fields(group):
            meaning = f"{info.description}{_EFFECTS[effect_of(name)]}"
            yield render_row(section.under + name, kind.type, shown_default(info), kind.valid, meaning)


def render_row(name: str, kind: str, default: str, allowed: str, meaning: str) -> str:
    """Return a property's row, without facts that every reader knows, such as the values of a bool.

    If the default is one of the allowed words, it is marked among these words, and not repeated.
    """
    shown = (
        ""
        if allowed in _SAYS_NOTHING
        else _MANY.sub("", _AT_LEAST.sub(r"≥\1", allowed)).removeprefix("one of ").replace(_URL, "URL")
    )
    star = " *" if _NOT_THE_PLUGINS in meaning else ""
    words = meaning.replace(f" {_NOT_THE_PLUGINS}.", "").replace(f"{_NOT_THE_PLUGINS} and", "The plugin")
    type_and_default = f"{kind} {default}".removeprefix("string").removesuffix(" `false`").strip()
    if kind == "string" and (word := default.strip("`")):
        marked = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", default, shown, count=1)
        type_and_default, shown = ("", marked) if marked != shown else (type_and_default, shown)
    value = ", ".join(part for part in (type_and_default, shown) if part)
    return f"`{name}`{star} | {value} | {words}".replace("|  |", "| |")


def shown_default(info: FieldInfo) -> str:
    """Format a default for a table cell."""
    if info.is_required():
        return "required"
    if info.default is None:
        return ""
    if isinstance(info.default, tuple) and [type(part) for part in info.default] == [str, int]:
        return f"`{info.default[0]}:{info.default[1]}`"
    if info.default in ("", ()):
        return ""
    if isinstance(info.default, tuple):
        return f"`{','.join(map(str, info.default))}`"
    return f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"


def pinterest_table() -> str:
    """Return a table of Pinterest's properties with our replacement for each, then those without effect."""
    lines = ["Pinterest's name | here | note", "---|---|---"]
    lines += [f"`{row.name}` | `{row.own}` | {row.note}".rstrip() for row in TABLE if row.own]
    silent = ", ".join(f"`{row.name}`" for row in TABLE if not row.own and row.name != _JAVA_PLACES)
    (places,) = (row for row in TABLE if row.name == _JAVA_PLACES)
    lines += ["", f"Without effect: {silent}. `{places.name}` too: {places.note}."]
    return "\n".join(lines)
