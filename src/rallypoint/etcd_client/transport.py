"""The only module that knows grpc: channels, and calls of bytes by name.  grpc is imported when it is first needed."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rallypoint.etcd_client.endpoints import Tls
from rallypoint.etcd_client.errors import EtcdForkError, EtcdMissingError
from rallypoint.forks import OpenedIn

# grpc reads them when it is imported.  Its own fork handlers make children of fork hang; and it would print lines of its
# own beside our error messages, which say what is worth knowing.
_VARIABLES = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}

# Only all three together notice a server that is there and silent; etcd hangs up on pings more often than every 5 s.  Any
# other traffic takes their place.
PING_EVERY_MS = 6000
PING_TIMEOUT_MS = 5000

_OPTIONS = (
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # A member that comes back is to be found soon, and one that is not there given up soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A member may come back under its name with another address, as on Kubernetes; by default grpc looks that up twice a
    # minute at the most, which costs leases.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # etcd answers a range or a watch in one message, however large.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd belongs to the cluster; a proxy for the way out does not lead there.
    ("grpc.enable_http_proxy", 0),
    # `cluster` decides what to do after a failure, and nothing else does.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
)

KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
"""The one call for which etcd has a stream and nothing else."""

Metadata = tuple[tuple[str, str], ...]

_used_by: OpenedIn | None = None


def load_grpc() -> ModuleType:
    """The module grpc, or an error that says how to get it."""
    global _used_by  # noqa: PLW0603  # what a fork breaks belongs to the process
    check_process(_used_by)
    unset = [name for name in _VARIABLES if name not in os.environ]
    try:
        for name in unset:
            os.environ[name] = _VARIABLES[name]
        import grpc
    except ImportError as problem:
        raise EtcdMissingError(
            f"etcd is reached through grpcio, which is not installed ({problem}); install it: pip install 'rallypoint[etcd]'"
        ) from problem
    finally:
        for name in unset:
            os.environ.pop(name, None)
    if _used_by is None:
        atexit.register(_leave_streams_alone)
        _used_by = OpenedIn()
    return grpc  # type: ignore[no-any-return]


def _leave_streams_alone() -> None:
    # grpc's finalizer waits for the stream's lock: for ever, if a daemon thread held that lock when it was ended.
    streams = getattr(sys.modules.get("grpc._channel"), "_Rendezvous", None)
    if streams is not None:
        streams.__del__ = lambda _: None


def check_process(opened_in: OpenedIn | None) -> None:
    """Refuse to work in a forked child, where grpc's threads do not exist and its calls would hang."""
    if opened_in is not None and not opened_in.is_this_process:
        raise EtcdForkError(opened_in.refusal("the etcd client", "grpcio does not survive a fork"))


class CallFailedError(Exception):
    """A call that brought no answer: grpc's status and text."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}")
        self.code, self.details = code, details


class Channel:
    """The connection to one endpoint, made when it is first used.  Safe to use from many threads."""

    def __init__(self, endpoint: str, files: list[bytes | None] | None = None, server_name: str | None = None) -> None:
        self.endpoint = endpoint
        self._grpc = load_grpc()
        self._opened_in = OpenedIn()
        options: list[tuple[str, int | str]] = list(_OPTIONS)
        if server_name is not None:
            options.append(("grpc.ssl_target_name_override", server_name))
        if files is None:
            self._channel = self._grpc.insecure_channel(endpoint, options)
        else:
            credentials = self._grpc.ssl_channel_credentials(*files)
            self._channel = self._grpc.secure_channel(endpoint, credentials, options)
        self._methods: dict[str, Any] = {}

    def call(self, method: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        if method == KEEP_ALIVE:
            return self._first_answer(method, request, timeout_s, metadata)
        check_process(self._opened_in)
        try:
            ask = self._methods.get(method) or self._methods.setdefault(method, self._channel.unary_unary(method))
            answer: bytes = ask(request, timeout=timeout_s, metadata=metadata)
        except self._grpc.RpcError as failure:
            raise _failed(failure) from failure
        except ValueError as problem:  # a channel that was closed meanwhile
            raise CallFailedError("CANCELLED", str(problem)) from problem
        return answer

    def _first_answer(self, method: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(request)
        # Open until the answer is there: etcd's proxy gives none on a stream that was ended before.
        stream = self.stream(method, iter(requests.get, None), metadata, timeout_s)
        try:
            for answer in stream:
                return answer
            raise CallFailedError("UNAVAILABLE", "the member ended the stream")
        finally:
            requests.put(None)
            stream.cancel()

    def stream(
        self, method: str, requests: Iterator[bytes], metadata: Metadata, timeout_s: float | None = None
    ) -> ByteStream:
        """A stream in both directions; it lasts until either side ends it, or for so long."""
        check_process(self._opened_in)
        try:
            call = self._channel.stream_stream(method)(requests, timeout=timeout_s, metadata=metadata)
            return ByteStream(self._grpc, call)
        except ValueError as problem:
            raise CallFailedError("CANCELLED", str(problem)) from problem
        except RuntimeError as problem:  # a stream needs a thread of grpc's, and there may be none left
            raise CallFailedError("UNAVAILABLE", str(problem)) from problem

    def close(self) -> None:
        if self._opened_in.is_this_process:
            self._channel.close()


class ByteStream:
    """What the other side sends, message by message."""

    def __init__(self, grpc: ModuleType, call: Any) -> None:
        self._grpc = grpc
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        problem: CallFailedError | None = None
        try:
            yield from self._call
        except self._grpc.RpcError as failure:
            problem = _failed(failure)
            # grpc's call is its own exception.  Without its traceback nothing refers to it any more, and it is freed here:
            # the garbage collector might free it at the end of the process, and wait there for the lock of a dead thread.
            failure.__traceback__ = None
        finally:
            self._call = None
        if problem is not None:
            raise problem

    def cancel(self) -> None:
        """End the stream; the iteration ends with `CallFailedError`."""
        call = self._call
        if call is not None:
            call.cancel()


def _failed(failure: Any) -> CallFailedError:
    return CallFailedError(failure.code().name, failure.details() or "")


class Channels:
    """The channels to all endpoints of a cluster, each opened when it is first asked for."""

    def __init__(self, tls: Tls | None) -> None:
        load_grpc()  # raise here, and not on some thread later, if it is missing
        self._tls = tls
        self._files = tls.read() if tls is not None else None
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._retired: list[Channel] = []  # those with certificates that were replaced; running calls end there
        self._is_closed = False

    def to(self, endpoint: str) -> Channel:
        """The channel to one endpoint."""
        with self._lock:
            if self._is_closed:
                raise CallFailedError("CANCELLED", "the client was closed")
            if endpoint not in self._channels:
                self._channels[endpoint] = Channel(endpoint, self._files, self._tls.server_name if self._tls else None)
            return self._channels[endpoint]

    def reload_certificates(self) -> bool:
        """Read the certificates again; True if they were replaced: from now on, all connect anew with the new ones."""
        if self._tls is None:
            return False
        try:
            files = self._tls.read()
        except EtcdMissingError:  # they are perhaps being replaced in this moment
            return False
        with self._lock:
            if files == self._files:
                return False
            old, self._retired = self._retired, list(self._channels.values())
            self._files, self._channels = files, {}
        for channel in old:
            channel.close()
        return True

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels = [*self._retired, *self._channels.values()]
        for channel in channels:
            channel.close()
