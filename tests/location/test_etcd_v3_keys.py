"""The names of a run's keys in etcd v3."""

from __future__ import annotations

import pytest

from rallypoint.location.registers.etcd_v3_keys import RecordKeys


def test_a_run_has_its_keys_in_one_folder() -> None:
    keys = RecordKeys("/jobs/", "team/llama 7")
    assert keys.runs == "/jobs/"
    assert keys.run == "/jobs/team%2Fllama%207/"
    assert keys.record == "/jobs/team%2Fllama%207/record"
    assert keys.claim(3) == keys.claims + "0000000000000003"
    assert keys.store("s/1") == keys.run + "stores/s%2F1/"
    assert keys.old_leader == keys.run + "leader"
    assert keys.old_board == keys.run + "out/board"


def test_claims_sort_by_their_epoch() -> None:
    keys = RecordKeys("/jobs", "llama")
    assert keys.claim(9) < keys.claim(10) < keys.claim(10**15)


@pytest.mark.parametrize("run_id", ["llama", "team/llama 7", "record", "größe", "a%2Fb", "x" * 128])
@pytest.mark.parametrize("prefix", ["/rallypoint", "/jobs/", "", "/"])
def test_a_record_key_names_its_run(prefix: str, run_id: str) -> None:
    key = RecordKeys(prefix, run_id).record.encode()
    assert RecordKeys(prefix, "another").run_id_of(key) == run_id


@pytest.mark.parametrize(
    "key",
    [
        b"/jobs/llama/leader",
        b"/jobs/llama/records",
        b"/jobs/llama/claims/record",
        b"/jobs/other/llama/record",
        b"/jobs/record",
        b"/jobs//record",
        b"/jobs/a b/record",
        b"/jobs/\xff/record",
        b"/elsewhere/llama/record",
    ],
)
def test_other_keys_name_no_run(key: bytes) -> None:
    assert RecordKeys("/jobs", "").run_id_of(key) is None
