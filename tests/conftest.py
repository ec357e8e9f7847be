"""Fixtures for all tests: the object-store servers, started when a test first asks for one."""

from __future__ import annotations

pytest_plugins = ["tests.servers.fixtures"]
