"""On which backends a test runs: on all of them, or on those where there is something to ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.conformance.backend_kinds import KINDS, NOT_ASKED


def params(names: Iterable[str]) -> list[Any]:
    """The backends as parameters of the driver."""
    return [pytest.param(name, marks=[pytest.mark.soak] if KINDS[name].only_in_soak else []) for name in names]


def where_asked(what: str) -> pytest.MarkDecorator:
    """Run on the backends of which this is asked; `backend_kinds.py` declares the others, and why."""
    return pytest.mark.parametrize(
        "driver", params(name for name in KINDS if name not in NOT_ASKED[what]), indirect=True
    )


def where_not_asked(what: str) -> pytest.MarkDecorator:
    """Run on the backends of which this is not asked, to show that there is nothing to ask."""
    return pytest.mark.parametrize("driver", params(NOT_ASKED[what]), indirect=True)
