"""What every test shares: markers by need, golden files that can be rewritten, root demanded in words, an account at the end."""

import os
from typing import Any

import pytest
from hypothesis import settings

from tests.support import markers, order
from tests.support.account import Account

# Tests run under coverage and beside one another, so a slow example proves nothing.
settings.register_profile("rallypoint", deadline=None, print_blob=True)
settings.load_profile("rallypoint")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write golden files anew from what the code does now, instead of comparing",
    )
    parser.addoption("--seeds", default="20000:20150", help="the schedules that the simulation plays, first:end")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Account(), "rallypoint-account")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        markers.mark(item)
    if hasattr(config, "workerinput"):
        items.sort(key=order.place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    return order.scheduler(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.fail("This test needs root, and must not pass for want of it: run it as root.", pytrace=False)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))
