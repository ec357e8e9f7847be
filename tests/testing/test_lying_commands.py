"""Commands on a lying server: each gives complete files and the right output, or one error that explains why not.

For each command, ``make test`` runs a sample of the server's lies, ``make soak`` all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.cli.faulty_commands import COMMANDS, Command, CommandPlace
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.service import Cloud
from tests.support.faulty_server.way import Must, Way
from tests.support.faulty_server.ways import QUICK_WAYS, SLOW_WAYS, WAYS
from tests.support.stores.faulty_stores import SERVICES
from tieredstore.backends.cloud import store as cloud_store
from tieredstore.process.retry import RetryPolicy

pytestmark = pytest.mark.slow

SAMPLE = 5
"""Number of quick lies that ``make test`` tries for a command, besides one lie that takes long."""
LONGEST_S = 60.0
TIMELESS = {"no dates", "no updates", "no times"}
"""Lies by which listings lack the ages of objects, so that commands must keep objects without a manifest."""


@pytest.fixture(scope="module", params=list(Cloud), ids=lambda cloud: cloud.value)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandPlace]:
    cloud: Cloud = request.param
    with pytest.MonkeyPatch.context() as patched, FaultyServer(SERVICES[cloud]()) as server:
        patched.setattr(cloud_store, "RetryPolicy", partial(RetryPolicy, sleep=lambda _: None))
        yield CommandPlace.prepared(server, tmp_path_factory.mktemp(cloud.value))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_sample_of_lies_is_an_error_or_does_no_harm(place: CommandPlace, command: Command) -> None:
    draw = random.Random(f"{command.name} {place.server.service.cloud}")
    for ways, count in ((QUICK_WAYS, SAMPLE), (SLOW_WAYS, 1)):
        for way in draw.sample([way for way in ways if _meet(place, command, way)], count):
            _check(place, command, way)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_lie_is_an_error_or_does_no_harm(place: CommandPlace, way: Way) -> None:
    for command in COMMANDS:
        if _meet(place, command, way):
            _check(place, command, way)


def _meet(place: CommandPlace, command: Command, way: Way) -> bool:
    return place.server.service.cloud in way.clouds and not place.steps[command.name].isdisjoint(way.steps)


def _check(place: CommandPlace, command: Command, way: Way) -> None:
    began_s = time.monotonic()
    done = place.run(command, way, hurried=way in SLOW_WAYS and way.must is Must.UNAVAILABLE)
    took_s = time.monotonic() - began_s
    said = f"{command.name}, {way.name}: {done.code}, {done.stderr}"
    assert place.bare_manifests() == [], said
    assert "Traceback" not in done.stderr, said
    assert took_s < LONGEST_S, said
    if place.server.service.cloud is not Cloud.AZURE:  # a client cannot delete Azure's uncommitted blocks
        assert place.server.service.objects.uploads == {}, said
    if done.code == 0 and command.lacks_manifest and way.name in TIMELESS:
        assert place.objects() == place.before(command), said
    elif done.code == 0:
        # A lie about an absent object, such as a manifest before a copy, may be harmless.
        assert command.copies or done.stdout == place.honest[command.name].stdout, said
        assert place.objects() == place.left[command.name], said
    else:
        assert way.must is not Must.RIGHT, said
        assert way.must.error is not None, said
        assert done.code == way.must.error.exit_code, said
