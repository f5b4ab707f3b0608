"""Tokens: what follows from a master token, what does not, and what a bad one gets (rule 16)."""

from __future__ import annotations

import ast
import hmac
import re
from pathlib import Path

import pytest

import rallypoint
from rallypoint import protocol
from rallypoint.tokens import AccessRole, Side, Token, client_token, new_token, read_token

MASTER = Token.parse("correct-horse-battery-staple")
CONNECTION = ("node-1", 3, "client's nonce", "server's nonce")


def proves(prover: Token, verifier: Token) -> bool:
    return verifier.is_proof(prover.prove(Side.CLIENT, *CONNECTION), Side.CLIENT, *CONNECTION)


@pytest.mark.parametrize("role", AccessRole)
def test_the_token_of_a_run_proves_itself_to_the_master(role: AccessRole) -> None:
    written = MASTER.for_run("llama", role).written()
    assert proves(Token.parse(written), MASTER.for_run("llama", role))


def test_a_higher_role_can_take_a_lower_one_and_not_the_reverse() -> None:
    node = MASTER.for_run("llama", AccessRole.NODE)
    assert proves(node.for_run("llama", AccessRole.VIEWER), MASTER.for_run("llama", AccessRole.VIEWER))
    with pytest.raises(ValueError, match="for the role node, which may not do what an admin may"):
        node.for_run("llama", AccessRole.ADMIN)


def test_tokens_of_other_runs_roles_and_masters_prove_nothing() -> None:
    node = MASTER.for_run("llama", AccessRole.NODE)
    assert not proves(MASTER.for_run("other", AccessRole.NODE), node)
    assert not proves(MASTER.for_run("llama", AccessRole.VIEWER), node)
    assert not proves(Token.parse(new_token()).for_run("llama", AccessRole.NODE), node)
    with pytest.raises(ValueError, match="for the run 'llama', not for 'other'"):
        node.for_run("other", AccessRole.NODE)


@pytest.mark.parametrize("place", range(len(CONNECTION)))
def test_a_proof_is_of_one_connection_only(place: int) -> None:
    node = MASTER.for_run("llama", AccessRole.NODE)
    proof = node.prove(Side.CLIENT, *CONNECTION)
    other: list[str | int] = [*CONNECTION]
    other[place] = 4 if place == 1 else "another"
    assert node.is_proof(proof, Side.CLIENT, *CONNECTION)
    assert not node.is_proof(proof, Side.CLIENT, *other)
    assert not node.is_proof(proof, Side.SERVER, *CONNECTION)


def test_what_proves_something_is_compared_in_constant_time_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a function that makes no difference of where two texts differ; nothing else compares them."""
    right = MASTER.prove(Side.CLIENT, *CONNECTION)
    monkeypatch.setattr(hmac, "compare_digest", lambda given, wanted: False)
    assert not MASTER.is_proof(right, Side.CLIENT, *CONNECTION)
    assert not protocol.is_same_mac("a", "a")
    secret = re.compile(r"mac|proof|secret")
    for path in sorted(Path(rallypoint.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                names = [each.attr for each in (node.left, *node.comparators) if isinstance(each, ast.Attribute)]
                names += [each.id for each in (node.left, *node.comparators) if isinstance(each, ast.Name)]
                assert not any(map(secret.fullmatch, names)), f"{path}:{node.lineno}"


def test_a_token_does_not_show_in_a_log() -> None:
    node = MASTER.for_run("llama", AccessRole.NODE)
    assert "horse" not in repr(MASTER)
    assert node.written().rpartition(".")[2] not in repr(node)


@pytest.mark.parametrize("text", ["", "short", "with blanks in the middle", "ümlaut-is-no-ascii-text", "x" * 1025])
def test_what_cannot_be_a_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="16 to 1024 printable ASCII") as caught:
        Token.parse(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_token_of_a_run_that_was_cut_off_is_named_as_that(cut: int) -> None:
    written = MASTER.for_run("llama", AccessRole.NODE).written()
    with pytest.raises(ValueError, match="cut off"):
        Token.parse(written[:-cut])


def test_a_token_comes_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("correct-horse-battery-staple\n")
    environment = {"RALLYPOINT_TOKEN": "the-environment-has-this"}
    from_file, from_environment = read_token(str(file), environment), read_token(None, environment)
    assert from_file is not None
    assert from_file.secret == MASTER.secret
    assert from_environment is not None
    assert from_environment.secret == b"the-environment-has-this"
    assert read_token(None, {}) is None


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*missing' cannot be read: No such file"):
        read_token(f"{tmp_path}/missing")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        read_token(str(tmp_path))


def test_a_token_that_does_not_reach_gets_the_command_that_makes_one() -> None:
    with pytest.raises(ValueError, match="`rallypoint token b --role node` prints one that fits"):
        client_token(MASTER.for_run("a", AccessRole.NODE), "b", AccessRole.NODE)
