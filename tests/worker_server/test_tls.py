"""TLS inside waitress's loop, against real clients on loopback."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme

from lightkeeper.worker_server.http_server import TlsError, tls_channel
from tests.worker_server.ranks import eventually
from tests.worker_server.test_http_server import BIG, Served, closes


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made.private_key_pem.write_to_path(str(key))
    for blob in made.cert_chain_pems:
        blob.write_to_path(str(cert), append=True)
    return cert, key


@pytest.fixture
def server(files):
    with contextlib.closing(Served(tls_channel(*files))) as served:
        yield served


@pytest.fixture
def impatient(files):
    with contextlib.closing(Served(tls_channel(*files), request_s=0.5)) as served:
        yield served


@pytest.fixture
def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def answered(server, context):
    try:
        return server.get("/", context)
    except OSError:  # on a busy machine half a second is no haste
        return None


def test_a_client_that_trusts_the_authority_gets_answers(server, trusting):
    port = server.server.port
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trusting)
    for _ in range(3):  # on one connection
        connection.request("POST", "/again", b"x" * 40_000)
        assert connection.getresponse().read() == b"127.0.0.1 /again\n"
    connection.close()


def test_a_big_answer_arrives_whole(server, trusting):
    assert server.get("/big", trusting) == (200, len(BIG))


def test_many_clients_at_once(server, trusting):
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: server.get("/", trusting), range(60)))
    assert answers == [(200, len("127.0.0.1 /\n"))] * 60


def test_a_client_that_does_not_trust_it_is_not_served(server):
    with pytest.raises(ssl.SSLCertVerificationError):
        server.get("/", ssl.create_default_context())


def test_an_old_protocol_is_refused(server, trusting):
    trusting.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError, match=r"(?i)ssl|tls|reset"):
        server.get("/", trusting)


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"]
)
def test_a_handshake_that_is_not_finished_is_dropped(impatient, trusting, sent):
    assert closes(impatient.connect(sent)) < 5
    eventually(lambda: answered(impatient, trusting), "a client that makes haste is answered")


def test_clients_that_break_off_end_nothing(server, trusting, caplog):
    """A reset makes the socket readable and hung up at once: it is closed twice in one turn."""
    breaking_off = struct.pack("ii", 1, 0)  # SO_LINGER: on close, send a reset
    for _ in range(5):
        with trusting.wrap_socket(server.connect(), server_hostname="127.0.0.1") as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, breaking_off)
    assert server.get("/", trusting)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_plain_http_and_noise_are_dropped_at_once(server, trusting):
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 100):
        assert closes(server.connect(noise)) < 5
    assert server.get("/", trusting)


def test_a_certificate_that_cannot_be_used_says_which_and_why(files, tmp_path):
    cert, key = files
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(str(other))
    for pair in ((bad, key), (cert, bad), (cert, other), (tmp_path / "none", key)):
        with pytest.raises(TlsError, match=r"LIGHTKEEPER_TLS_CERT=.*KEY=.*not a certificate"):
            tls_channel(*pair)
