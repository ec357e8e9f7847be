"""``sasl.jaas.config``, as it is written for Java clients, in the words of librdkafka."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tieredstore.errors import ConfigError

_NAME: Final = "sasl.jaas.config"
_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([=;])|([^\s=;"']+))""")
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_LENGTH: Final = 64 * 1024
"""Longer ones are no login."""


class _Word(NamedTuple):
    text: str
    is_mark: bool = False
    """Whether it is a sign of the form, and not one that somebody has put between quotes."""


_IS: Final = _Word("=", is_mark=True)
_END: Final = _Word(";", is_mark=True)

_PASSWORD: Final = {"username": "sasl.username", "password": "sasl.password"}
_OAUTH: Final = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_MODULES: Final = {
    "PlainLoginModule": (("PLAIN",), _PASSWORD),
    "ScramLoginModule": (("SCRAM-SHA-256", "SCRAM-SHA-512"), _PASSWORD),
    "OAuthBearerLoginModule": (("OAUTHBEARER",), _OAUTH),
}


def login_of_jaas(text: str, mechanism: str) -> dict[str, str]:
    """The settings that one login module stands for; ConfigError, which shows nothing of ``text`` but its names.

    Kafka's modules for PLAIN, SCRAM and OAUTHBEARER are taken, under any package.
    """
    module, options = _parsed(text)
    if module not in _MODULES:
        raise ConfigError(
            f"{_NAME} names the login module {module}; those of PLAIN, SCRAM and OAUTHBEARER can be used here: "
            f"{', '.join(_MODULES)}"
        )
    mechanisms, names = _MODULES[module]
    if mechanism not in mechanisms:
        raise ConfigError(f"{_NAME} names {module}; sasl.mechanism must be {' or '.join(mechanisms)} for it")
    unknown = sorted(options.keys() - names.keys())
    if unknown:
        raise ConfigError(f"{_NAME} has the option {unknown[0]}; {module} can be given {', '.join(names)} here")
    return _named(module, options, names)


def _named(module: str, options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    missing = [name for name in names if name not in options and name != "scope"]
    # For OAUTHBEARER the client may be named by properties of its own.
    if missing and names is _PASSWORD:
        raise ConfigError(f"{_NAME} has no {missing[0]}: {module} needs {' and '.join(names)}")
    login = {names[name]: value for name, value in options.items()}
    return login | ({"sasl.oauthbearer.method": "oidc"} if names is _OAUTH else {})


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    """The module without its package, and its options."""
    words = _words(text)
    if len(words) < 3 or words[-1] != _END or _END in words[:-1] or words[1].text not in _FLAGS:
        raise ConfigError(f'{_NAME} is not of the form "<login module> required <name>=<value> ...;" for one module')
    module, flag = words[0].text, words[1].text
    options: dict[str, str] = {}
    rest = words[2:-1]
    for at in range(0, len(rest), 3):
        option = rest[at : at + 3]
        if [word.is_mark for word in option] != [False, True, False]:
            raise ConfigError(f'{_NAME} has something other than <name>="<value>" behind {module} {flag}')
        name, _, value = (word.text for word in option)
        if name in options:
            raise ConfigError(f"{_NAME} has the option {name} twice")
        options[name] = value
    # Without its package: repackaged clients have the same modules under names such as kafkashaded.org.apache.
    return module.rpartition(".")[2], options


def _words(text: str) -> list[_Word]:
    words: list[_Word] = []
    at, text = 0, text.strip()
    while at < len(text):
        token = _TOKEN.match(text, at) if len(text) <= _LENGTH else None
        if token is None:
            raise ConfigError(f"{_NAME} has a quote that is not closed, or is over {_LENGTH} characters long")
        quoted = token[1] if token[1] is not None else token[2]
        if quoted is not None:
            words.append(_Word(re.sub(r"\\(.)", r"\1", quoted)))
        else:
            words.append(_Word(token[3] or token[4], is_mark=token[3] is not None))
        at = token.end()
    return words
