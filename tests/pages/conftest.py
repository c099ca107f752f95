"""The pages in Chromium against the fake engine: the fixtures are those of tests/portal."""

from __future__ import annotations

from tests.portal.conftest import browser, config, engine, front, options, page, plain_config, portal, quick_hashes  # noqa: F401
