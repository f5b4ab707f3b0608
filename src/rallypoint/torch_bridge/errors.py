"""Our errors in torch's words: who catches torch's class catches them, and who catches ours does too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.elastic import rendezvous as torch_api

from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

_NAMESAKES: tuple[type[RendezvousError], ...] = (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
    RendezvousError,  # the last: all the others are of this kind
)


_made: dict[type[RendezvousError], type[RendezvousError]] = {}


def torch_class(ours: type[RendezvousError]) -> type[RendezvousError]:
    """A class of errors that is both ours and torch's, made on first use."""
    if ours not in _made:
        base = next(namesake for namesake in _NAMESAKES if issubclass(ours, namesake))
        theirs: Any = getattr(torch_api, base.__name__)
        _made[ours] = type(ours.__name__, (ours, theirs), {"__module__": __name__, "__doc__": ours.__doc__})
    return _made[ours]


def is_torchs(exc: RendezvousError) -> bool:
    """Whether an error is torch's already."""
    return isinstance(exc, torch_api.RendezvousError)


def in_torch_words(exc: RendezvousError) -> RendezvousError:
    """The same error with the same sentence, as torch knows it."""
    return torch_class(type(exc))(*exc.args)


@contextmanager
def torch_words() -> Iterator[None]:
    """Within, our errors become torch's as well."""
    try:
        yield
    except RendezvousError as exc:
        raise in_torch_words(exc) from exc
