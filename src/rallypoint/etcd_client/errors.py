"""What can go wrong with etcd: one family, each with a sentence that says which endpoints were asked and what they said."""

from __future__ import annotations


class EtcdError(Exception):
    """Anything that can go wrong with etcd; catch this to catch them all."""


class EtcdMissingError(EtcdError):
    """A part of the installation is not there: grpcio, or a file with a certificate."""


class EtcdUnavailableError(EtcdError):
    """No endpoint gave a usable answer in time, and nothing was changed; the message has the last answer of each."""


class EtcdHopelessError(EtcdUnavailableError):
    """Every endpoint answered, and will always answer so: it is not etcd, or certificates do not fit; nothing was changed."""


class EtcdAmbiguousError(EtcdUnavailableError):
    """A write was sent and its answer was lost: it may or may not have happened.  Read back before doing it again."""


class EtcdAuthError(EtcdError):
    """Wrong name or password, no permission for the key, or a user is needed and none was given."""


class EtcdCompactedError(EtcdError):
    """The revision asked for is no longer in etcd's history; read the present state and go on from there."""


class EtcdLeaseLostError(EtcdError):
    """The lease has expired or was revoked, and the keys that hung on it are gone."""


class EtcdNoSpaceError(EtcdError):
    """The database has reached its quota; etcd takes no writes until it is compacted, defragmented and disarmed."""


class EtcdRefusedError(EtcdError):
    """etcd understood the request and refused it: too large, too many operations, an invalid range."""


class EtcdMessageError(EtcdError):
    """Bytes that are no message of etcd's, or a value that does not fit into one."""


class EtcdClosedError(EtcdError):
    """The client, watch or lease was closed by its own process."""


class EtcdForkError(EtcdError):
    """The client was opened before a fork and used after it."""
