"""What no node can join with is refused at once, in words, before anything is served or tried."""

from __future__ import annotations

import re
from typing import Any

import pytest

import rallypoint
from tests.support.cli_processes import free_port

BEYOND = "x" * 5000
BROKEN = "caf\udce9"
"""A name whose bytes are not UTF-8, as Python gives it."""

REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "The endpoint '' is empty: write HOST:PORT, or a URL such as etcd://HOST:PORT."),
    ("  ", {}, "is empty"),
    ("etcd://", {}, "The endpoint 'etcd://' is empty"),
    ("127.0.0.1:0", {}, "The endpoint '127.0.0.1:0' has port 0, on which nothing can be reached"),
    ("[::1]:0", {}, "has port 0"),
    ("c10d://127.0.0.1:0", {}, "has port 0"),
    ("etcd-v2://a:2379,b:0", {}, "has port 0"),
    ("127.0.0.1:1", {"run": ""}, "The run id is empty"),
    ("127.0.0.1:1", {"run": "x" * 129}, "The run id has 129 characters, and at most 128 can be sent"),
    ("127.0.0.1:1", {"run": BROKEN}, r"The run id 'caf\udce9' cannot be written in UTF-8"),
    ("127.0.0.1:1", {"node_name": "x" * 257}, "should be a text in UTF-8 of at most 256 characters"),
    ("127.0.0.1:1", {"node_name": BROKEN}, "It says what this node is called"),
    ("127.0.0.1:1", {"topology": BEYOND}, "should be a text in UTF-8 of at most 4096 characters"),
    ("127.0.0.1:1", {"topology": BROKEN}, "should be a text in UTF-8"),
    ("127.0.0.1:1", {"local_addr": BEYOND}, "is none: write an address or a name, at most 128 characters"),
    ("127.0.0.1:1", {"local_addr": BROKEN}, r"The address 'caf\udce9' is none"),
]


@pytest.mark.parametrize(("endpoint", "given", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_cannot_be_joined_with_is_refused_in_words(endpoint: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        rallypoint.join(endpoint, **{"run": "refused", "quiet": True, **given})


def test_the_longest_names_can_be_joined_with() -> None:
    """In any script."""
    endpoint = f"127.0.0.1:{free_port()}"
    with rallypoint.join(endpoint, run="é" * 128, node_name="ł" * 256, topology="/" * 4096, quiet=True) as place:
        assert place.round == 1
