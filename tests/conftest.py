"""What every test shares: markers by need, golden files that can be rewritten, root demanded in words, an account at the end.

The account is the time by folder, and, when the pains were checked, which of them no test shows gone yet.
"""

import os
from collections import defaultdict

import pytest
from hypothesis import settings

from tests.project.pains import PAINS_PAGE, read_pains, without_tests
from tests.support import markers

# Tests run under coverage and beside one another, so a slow example proves nothing.
settings.register_profile("rallypoint", deadline=None, print_blob=True)
settings.load_profile("rallypoint")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write golden files anew from what the code does now, instead of comparing",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Account(), "rallypoint-account")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        markers.mark(item)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.fail("This test needs root, and must not pass for want of it: run it as root.", pytrace=False)


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))


class Account:
    """Adds up how long each folder's tests took; with xdist, the reports of all workers arrive here."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0]
        folder = "/".join(folder.split("/")[:2])
        self.seconds[folder] += report.duration
        self.tests[folder].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if "tests/project" in self.tests and PAINS_PAGE.exists():
            bare = without_tests(read_pains(PAINS_PAGE.read_text(encoding="utf-8")))
            terminalreporter.write_sep("=", "pains")
            numbers = ", ".join(str(number) for number in bare)
            terminalreporter.write_line(f"no test yet shows these gone: {numbers}" if bare else "each has its test")
        terminalreporter.write_sep("=", "time by folder")
        for folder, seconds in sorted(self.seconds.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"{seconds:8.2f} s  {len(self.tests[folder]):6d} tests  {folder}")
