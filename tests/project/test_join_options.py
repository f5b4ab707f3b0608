"""The options of `rallypoint.join` are typed, so that editors complete them and type checkers refuse a mistyped one."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import rallypoint
from rallypoint.backends.c10d import C10D, FILE
from rallypoint.backends.etcd_v2 import ETCD_V2
from rallypoint.backends.etcd_v3 import ETCD_V3
from rallypoint.backends.fixed import RALLYPOINT
from rallypoint.backends.join_options import JoinOptions

BACKENDS = (RALLYPOINT, C10D, FILE, ETCD_V2, ETCD_V3)


def test_the_types_name_the_options_of_all_backends_and_no_others() -> None:
    assert set(JoinOptions.__optional_keys__) == {option.name for backend in BACKENDS for option in backend.options}


def test_join_takes_these_types() -> None:
    assert inspect.signature(rallypoint.join).parameters["options"].annotation == "Unpack[JoinOptions]"


def test_what_a_server_at_a_fixed_address_can_be_told_one_that_etcd_names_can_be_told_too() -> None:
    """But for the token: who may read the register has the server's secret (rule 17j)."""
    of_fixed, of_etcd = ({option.name: option for option in backend.options} for backend in (RALLYPOINT, ETCD_V3))
    assert of_fixed.keys() - of_etcd.keys() == {"token_file"}
    for name in of_fixed.keys() & of_etcd.keys() - {"store", "cacert", "cert", "key"}:
        assert of_etcd[name] is of_fixed[name], f"{name} is the same option"


def test_a_typed_number_or_truth_is_what_the_backends_read() -> None:
    """An option whose default is a number, a truth or text has that type."""
    for backend in BACKENDS:
        for option in backend.options:
            if isinstance(option.default, bool | int | float):
                assert get_type_hints(JoinOptions)[option.name] in (type(option.default), float), option.name
