"""Who keeps a lease: several at once, each for itself; a keeper that stumbles goes on, and one that is refused logs in."""

from __future__ import annotations

import time

import pytest

from rallypoint.etcd_client import EtcdClient
from rallypoint.etcd_client.keeper import Keeper
from rallypoint.etcd_client.leases import Lease
from tests.waiting import until


def _pass(seconds: float) -> None:
    start = time.monotonic()
    until(lambda: time.monotonic() > start + seconds, "time passes")


def test_two_of_a_process_keep_one_lease_and_one_lets_go(client: EtcdClient) -> None:
    with client.twin() as other:
        mine = client.grant(2)
        theirs = other.adopt(mine.id)
        mine.release()
        _pass(2 * mine.ttl_s + 1)
        assert client.time_to_live(mine).ttl > 0
        assert theirs.remaining_s() > 0
        assert not theirs.lost.is_set()
        theirs.release()
        until(lambda: client.time_to_live(mine).ttl == -1, "it expires when the last lets go")


def test_who_adopts_what_it_has_released_is_the_one_that_hears_of_it(client: EtcdClient) -> None:
    """What was still planned for the earlier one is not done in the place of the later one."""
    first = client.grant(2)
    first.release()
    second = client.adopt(first.id)
    _pass(first.ttl_s + 1)
    assert second.remaining_s() > 0
    assert first.remaining_s() == 0
    second.revoke()


def test_all_who_keep_a_lease_hear_that_it_is_lost(client: EtcdClient) -> None:
    first = client.grant(2)
    second = client.adopt(first.id)
    client.revoke(first.id)
    for lease in (first, second):
        until(lease.lost.is_set, "each hears of it")


def test_a_keeper_that_stumbles_goes_on(client: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, stumbles = Keeper._renew, list[Lease]()

    def trips(keeper: Keeper, lease: Lease, now: float) -> None:
        if not stumbles:
            stumbles.append(lease)
            raise ValueError("a mistake of the keeper's")
        renew(keeper, lease, now)

    monkeypatch.setattr(Keeper, "_renew", trips)
    leases = [client.grant(2) for _ in range(2)]
    until(lambda: stumbles, "it stumbles")
    renewals = [lease.renewal for lease in leases]
    then = [renewal.until for renewal in renewals]
    until(lambda: all(now.until > was + 1 for now, was in zip(renewals, then, strict=True)), "renewed after that")
    assert [lease.trouble for lease in leases] == [None, None]
    for lease in leases:
        lease.revoke()


def test_a_keeper_that_stumbles_all_the_time_says_so_and_rests_in_between(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stumbles = list[float]()

    def trips(*_: object) -> None:
        stumbles.append(time.monotonic())
        raise ValueError("a mistake of the keeper's")

    lease = client.grant(2)
    monkeypatch.setattr(Keeper, "_renew", trips)
    until(lambda: len(stumbles) >= 4, "it stumbles again and again")
    assert stumbles[3] - stumbles[0] > 0.5
    assert "a mistake of the keeper's" in str(lease.trouble)
    monkeypatch.undo()
    until(lambda: lease.trouble is None, "and is well when the mistake is")
    lease.revoke()
