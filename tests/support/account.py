"""What pytest adds to its summary: sections that tests hand in, the pains that no test shows gone, and the time by folder."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.project.pains import PAINS_PAGE, read_pains, without_tests

SECTION = "section of the summary"
"""The property by which a test hands in lines for the summary; the first of them is the title."""


class Account:
    """Adds up how long each folder's tests took; with xdist, the reports of all workers arrive here."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, set[str]] = defaultdict(set)
        self.sections: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = report.nodeid.partition("::")[0].rpartition("/")[0]
        folder = "/".join(folder.split("/")[:2])
        self.seconds[folder] += report.duration
        self.tests[folder].add(report.nodeid)
        if report.when == "teardown":
            self.sections += [str(text) for name, text in report.user_properties if name == SECTION]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for section in self.sections:
            title, _, text = section.partition("\n")
            terminalreporter.write_sep("=", title)
            terminalreporter.write_line(text)
        if "tests/project" in self.tests and PAINS_PAGE.exists():
            bare = without_tests(read_pains(PAINS_PAGE.read_text(encoding="utf-8")))
            terminalreporter.write_sep("=", "pains")
            numbers = ", ".join(str(number) for number in bare)
            terminalreporter.write_line(f"no test yet shows these gone: {numbers}" if bare else "each has its test")
        terminalreporter.write_sep("=", "time by folder")
        for folder, seconds in sorted(self.seconds.items(), key=lambda entry: -entry[1]):
            terminalreporter.write_line(f"{seconds:8.2f} s  {len(self.tests[folder]):6d} tests  {folder}")
