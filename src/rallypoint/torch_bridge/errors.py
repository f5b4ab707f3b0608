"""Errors that are both ours and torch's: code that catches either class catches them.

torch is never imported for it: a program that has not imported it cannot ask for its classes either.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rallypoint.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

P = ParamSpec("P")
T = TypeVar("T")

TORCH_API = "torch.distributed.elastic.rendezvous.api"

_made: dict[tuple[type[Exception], type[Exception]], type[Exception]] = {}


def both(ours: type[Exception], theirs: type[Exception]) -> type[Exception]:
    """A class of errors that is both ours and torch's, made on first use."""
    if (ours, theirs) not in _made:
        about = {"__module__": __name__, "__doc__": ours.__doc__}
        _made[ours, theirs] = type(ours.__name__, (ours, theirs), about)
    return _made[ours, theirs]


def in_torch_words(exc: RendezvousError) -> Exception:
    """The same error with the same sentence, as torch knows it; as it is where torch is not imported."""
    api = sys.modules.get(TORCH_API)
    theirs = next((getattr(api, base.__name__) for base in type(exc).__mro__ if hasattr(api, base.__name__)), None)
    return exc if theirs is None or isinstance(exc, theirs) else both(type(exc), theirs)(*exc.args)


def in_torch_words_too(function: Callable[P, T]) -> Callable[P, T]:
    """Let the errors of a function be torch's as well as ours."""

    @functools.wraps(function)
    def speak(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RendezvousError as exc:
            told = in_torch_words(exc)
            if told is exc:
                raise
            # The same error with another class: it has the same cause, and no other one.
            raise told.with_traceback(exc.__traceback__) from exc.__cause__

    return speak


def as_ours(error: Exception) -> Exception:
    """An error of a backend that was written for torch, in our family; any other as it is."""
    api = sys.modules.get(TORCH_API)
    for ours in (RendezvousConnectionError, RendezvousStateError):
        theirs = getattr(api, ours.__name__, None)
        if isinstance(theirs, type) and isinstance(error, theirs) and not isinstance(error, RendezvousError):
            return ours(str(error) or type(error).__name__)
    return error
