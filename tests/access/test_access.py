"""Who may come in: a real server with a token or certificates, real nodes and commands (rule 16, pain 24)."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rallypoint import protocol
from rallypoint.cli.certificates import make_certificates
from rallypoint.tls import TlsFiles
from rallypoint.tokens import AccessRole, Token
from tests.support.cli_processes import cli
from tests.support.forked_processes import ForkedProcess
from tests.support.protocol_client import ProtocolClient

MASTER = "a-master-token-that-is-long"
NODE = """
import sys, rallypoint
options = dict(option.split("=", 1) for option in sys.argv[3:])
options["join_timeout"] = float(options.get("join_timeout", 20))
with rallypoint.join(sys.argv[1], run=sys.argv[2], nodes=2, last_call_timeout=0.1, **options) as place:
    place.store.set(f"from {place.rank}", "hello")
    print(place.rank, place.store.get(f"from {1 - place.rank}"))
"""

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server of its own on a free port; its endpoint."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        command = [sys.executable, "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0", *arguments]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(server)
        assert server.stdout is not None
        return server.stdout.readline().split()[-1]

    yield start
    for server in started:
        server.terminate()
        server.wait(20)
        assert server.stdout is not None
        server.stdout.close()


def join(endpoint: str, run: str, *options: str, **environment: str) -> ForkedProcess:
    return ForkedProcess("-c", NODE, endpoint, run, *options, environment={**os.environ, **environment})


def ended(node: ForkedProcess) -> tuple[int, str, str]:
    out, err = node.communicate(timeout=40)
    return node.wait(), out, err


def ask(*arguments: str) -> tuple[int, str]:
    """What a command says, and its exit code."""
    done = cli(*arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def token(tmp_path: Path) -> Callable[..., str]:
    """Writes a token to a file: the master's, or that of a run and role; the file."""

    def write(run: str = "", role: AccessRole = AccessRole.NODE, master: str = MASTER) -> str:
        file = tmp_path / f"token-{run}-{role.value}-{len(master)}"
        file.write_text(Token.parse(master).for_run(run, role).written() if run else master)
        return str(file)

    return write


@pytest.fixture
def certs(tmp_path: Path) -> Callable[[str], list[str]]:
    make_certificates(tmp_path / "certs", (), 30)

    def options(name: str, folder: Path = tmp_path / "certs") -> list[str]:
        return [f"cacert={folder}/ca.pem", f"cert={folder}/{name}.pem", f"key={folder}/{name}-key.pem"]

    return options


def flags(options: list[str]) -> list[str]:
    return [f"--{option}" for option in options]


# Tokens ---------------------------------------------------------------------------------------------------------------


def test_nodes_with_the_master_token_or_with_that_of_their_run_meet(serve: Serve, token: Callable[..., str]) -> None:
    endpoint = serve("--token-file", token())
    in_environment = Path(token("r")).read_text()
    nodes = [join(endpoint, "r", f"token_file={token()}"), join(endpoint, "r", RALLYPOINT_TOKEN=in_environment)]
    results = [ended(node) for node in nodes]
    assert [code for code, _, _ in results] == [0, 0], results
    assert sorted(out for _, out, _ in results) == ["0 b'hello'\n", "1 b'hello'\n"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("none", "this server wants a token"),
        ("wrong", "the server did not prove that it has this node's token"),
        ("another run", "the token is for the run 'other', not for 'r'"),
        ("a viewer's", "the token is for the role viewer"),
    ],
)
def test_others_get_a_sentence_and_disturb_nobody(
    serve: Serve, token: Callable[..., str], given: str, sentence: str
) -> None:
    endpoint = serve("--token-file", token())
    waiting = join(endpoint, "r", f"token_file={token()}")
    files = {
        "wrong": token(master="a-wrong-token-which-is-longer"),
        "another run": token("other"),
        "a viewer's": token("r", AccessRole.VIEWER),
    }
    code, _, err = ended(join(endpoint, "r", *([f"token_file={files[given]}"] if given in files else [])))
    assert code != 0
    assert sentence in err
    second = join(endpoint, "r", f"token_file={token()}")
    assert [ended(node)[0] for node in (waiting, second)] == [0, 0]


def test_a_node_with_a_token_does_not_trust_a_server_without_one(serve: Serve, token: Callable[..., str]) -> None:
    code, _, err = ended(join(serve(), "r", f"token_file={token()}"))
    assert code != 0
    assert "the server wants no token, and this node has one" in err


def test_nodes_with_a_token_serve_each_other(token: Callable[..., str]) -> None:
    from tests.support.node_processes import free_port

    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [join(endpoint, "r", f"token_file={token('r')}") for _ in range(2)]
    assert [ended(node)[0] for node in nodes] == [0, 0]


def test_viewers_look_and_admins_change(serve: Serve, token: Callable[..., str]) -> None:
    endpoint = serve("--token-file", token())
    node = join(endpoint, "r", f"token_file={token()}")
    at = ("--endpoint", endpoint, "--token-file")
    viewer, admin = token("r", AccessRole.VIEWER), token("r", AccessRole.ADMIN)
    from tests.support.waiting import until

    until(lambda: ask("status", "r", *at, viewer)[0] == 0)
    assert ask("runs", *at, viewer)[0] == 0
    code, said = ask("close", "r", *at, viewer)
    assert (code, "a viewer looks at runs and changes none" in said) == (5, True)
    code, said = ask("status", "other", *at, viewer)
    assert (code, "the token is for the run 'r', not for 'other'" in said) == (5, True)
    assert ask("status", "r", "--endpoint", endpoint)[0] == 3
    assert ask("close", "r", *at, admin)[0] == 0
    assert ended(node)[0] != 0


def test_a_stranger_learns_nothing_but_the_name_of_the_protocol(serve: Serve, token: Callable[..., str]) -> None:
    host, _, port = serve("--token-file", token()).rpartition(":")
    with ProtocolClient(host, int(port)) as wire:
        wire.socket.sendall(protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION, "r", "a.1", 1)))
        challenge = wire.expect(protocol.Challenge)
        wire.say(protocol.Proof(challenge.proof))
        goodbye = wire.expect(protocol.Goodbye)
    assert goodbye.final
    assert "r'" not in goodbye.why


def test_the_status_of_a_run_counts_who_was_refused(serve: Serve, token: Callable[..., str]) -> None:
    from tests.support.waiting import until

    endpoint = serve("--token-file", token())
    node, at = join(endpoint, "r", f"token_file={token()}"), ("--endpoint", endpoint, "--token-file", token())
    until(lambda: ask("status", "r", *at)[0] == 0)
    host, _, port = endpoint.rpartition(":")
    for _ in range(2):
        with ProtocolClient(host, int(port)) as wire:
            wire.socket.sendall(protocol.MAGIC + protocol.frame(protocol.Hello(protocol.VERSION, "r", "a.1", 1)))
            wire.expect(protocol.Challenge)
            wire.say(protocol.Proof("0" * 64))
            wire.expect(protocol.Goodbye)
    said = " ".join(ask("status", "r", *at)[1].split())
    assert "2 callers turned away" in said
    assert "2 refused" in said
    assert ask("close", "r", *at)[0] == 0
    assert ended(node)[0] != 0


def test_a_proof_that_was_overheard_is_of_no_use(serve: Serve, token: Callable[..., str]) -> None:
    from rallypoint.tokens import Side

    host, _, port = serve("--token-file", token()).rpartition(":")
    key = Token.parse(MASTER).for_run("r", AccessRole.NODE)
    hello = protocol.Hello(protocol.VERSION, "r", "a.1", 1, nonce="n")
    proofs = []
    for attempt in range(2):
        with ProtocolClient(host, int(port)) as wire:
            wire.socket.sendall(protocol.MAGIC + protocol.frame(hello))
            challenge = wire.expect(protocol.Challenge)
            proofs.append(key.prove(Side.CLIENT, *protocol.named(hello, challenge.nonce)))
            wire.say(protocol.Proof(proofs[0]))
            wire.expect(protocol.Welcome if attempt == 0 else protocol.Goodbye)
    assert proofs[0] != proofs[1]


@pytest.mark.parametrize(("role", "node_id"), [(AccessRole.VIEWER, "evil.1"), (AccessRole.NODE, "")])
def test_a_role_is_held_to_what_it_is_for(
    serve: Serve, token: Callable[..., str], role: AccessRole, node_id: str
) -> None:
    """A viewer cannot come as a node, and a node cannot come as an administrator."""
    from rallypoint.tokens import Side

    host, _, port = serve("--token-file", token()).rpartition(":")
    key = Token.parse(MASTER).for_run("r", role)
    hello = protocol.Hello(protocol.VERSION, "r", node_id, 1, role=role, nonce="n")
    with ProtocolClient(host, int(port)) as client:
        client.socket.sendall(protocol.MAGIC + protocol.frame(hello))
        challenge = client.expect(protocol.Challenge)
        client.say(protocol.Proof(key.prove(Side.CLIENT, *protocol.named(hello, challenge.nonce))))
        assert "a node has the role node and names itself" in client.expect(protocol.Goodbye).why


def test_a_command_with_a_token_does_not_believe_a_server_without_one(serve: Serve, token: Callable[..., str]) -> None:
    code, said = ask("runs", "--endpoint", serve(), "--token-file", token())
    assert (code, "wants no token, and this command has one" in said) == (3, True)


@pytest.mark.parametrize("command", ["serve", "runs"])
def test_certificates_that_cannot_be_used_get_a_sentence(command: str) -> None:
    code, said = ask(command, "--cacert", "/nowhere/ca.pem", "--cert", "/nowhere/c.pem", "--key", "/nowhere/k.pem")
    assert (code, "cannot be read: No such file" in said, "Traceback" in said) == (2, True, False)


def test_the_commands_that_make_tokens(tmp_path: Path) -> None:
    code, master = ask("token", "--new")
    assert code == 0
    file = tmp_path / "master"
    file.write_text(master)
    code, derived = ask("token", "llama", "--role", "viewer", "--token-file", str(file))
    assert code == 0
    assert Token.parse(derived).role is AccessRole.VIEWER
    assert ask("token")[0] == 2
    code, said = ask("token", "llama", "--token-file", str(tmp_path / "missing"))
    assert (code, "cannot be read: No such file" in said) == (2, True)


# Certificates ---------------------------------------------------------------------------------------------------------


def test_nodes_with_certificates_meet_and_commands_with_certificates_are_answered(
    serve: Serve, certs: Callable[[str], list[str]]
) -> None:
    endpoint = serve(*flags(certs("server")))
    nodes = [join(endpoint, "r", *certs("node")) for _ in range(2)]
    results = [ended(node) for node in nodes]
    assert [code for code, _, _ in results] == [0, 0], results
    assert ask("runs", "--endpoint", endpoint, *flags(certs("node")))[0] == 0


def test_what_has_no_certificate_of_the_authority_is_refused(
    serve: Serve, certs: Callable[[str], list[str]], tmp_path: Path
) -> None:
    endpoint = serve(*flags(certs("server")))
    make_certificates(tmp_path / "others", (), 30)
    cacert, *own = certs("node")
    stranger = [option.replace("/certs/", "/others/") for option in (cacert, *own)]
    shown: tuple[list[str], ...] = ([], stranger, [cacert], [cacert, *stranger[1:]])
    nodes = [join(endpoint, "r", "join_timeout=3", *options) for options in shown]
    unknown = "something else may listen there, or it does not believe this node's certificate"
    sentences = (
        "something else may listen there, or it wants certificates: give cacert, cert and key",
        "the two do not believe each other's certificates",
        unknown,
        unknown,
    )
    for node, why in zip(nodes, sentences, strict=True):
        code, _, err = ended(node)
        assert code != 0
        assert why in err
    code, said = ask("runs", "--endpoint", endpoint, *flags(stranger))
    assert code == 3
    assert "do not believe each other's certificates" in said


def test_a_server_that_says_why_it_does_not_believe_a_certificate_is_heard(certs: Callable[[str], list[str]]) -> None:
    """A proxy, say: it reads the certificate after the node believes already that it is connected."""
    folder = Path(certs("server")[0].partition("=")[2]).parent
    context = TlsFiles(*(str(folder / name) for name in ("ca.pem", "server.pem", "server-key.pem"))).make(
        is_server=True
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    with listener.accept()[0] as caller, suppress(ssl.SSLError):
                        context.wrap_socket(caller, server_side=True)

        threading.Thread(target=refuse, daemon=True).start()
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        code, _, err = ended(join(endpoint, "r", "join_timeout=2", "is_host=false", certs("node")[0]))
    assert code != 0
    assert "the two do not believe each other's certificates" in err


def test_nodes_with_certificates_serve_each_other(certs: Callable[[str], list[str]]) -> None:
    from tests.support.node_processes import free_port

    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [join(endpoint, "r", *certs("node")) for _ in range(2)]
    assert [ended(node)[0] for node in nodes] == [0, 0]


def test_a_server_beyond_loopback_wants_a_token_or_certificates(token: Callable[..., str]) -> None:
    code, said = ask("serve", "--bind", "0.0.0.0:0")
    assert code == 2
    assert "rallypoint token --new" in said
    assert "rallypoint certs DIR" in said


def test_the_command_that_makes_certificates_overwrites_nothing(tmp_path: Path) -> None:
    code, said = ask("certs", str(tmp_path / "c"), "--host", "example.test")
    assert code == 0
    assert "rallypoint serve --cacert" in said
    assert (tmp_path / "c" / "server-key.pem").stat().st_mode & 0o777 == 0o600
    code, said = ask("certs", str(tmp_path / "c"))
    assert (code, "nothing is overwritten" in said) == (2, True)
