"""A server in a process of its own: it finishes what it took, and says what it cannot do."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
import urllib.request

import pytest

from nearkin.client import Client, ServerError
from nearkin.errors import DataError, OutputError
from nearkin.index import Index
from nearkin.serving.run import serve
from nearkin.serving.settings import Settings


def test_sigterm_finishes_the_request_that_was_taken(server, make_image, tmp_path):
    slow = f"""
import time
def embed(images, batch_size):
    Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(1.0)
    return colours_of(images, batch_size)
model = stand_in(embed)"""
    started = server(slow)
    found = []
    asking = threading.Thread(target=lambda: found.append(Client(started.url).search(make_image(), k=3)))
    asking.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    assert started.stop() == 0
    asking.join(30)
    assert len(found[0]) == 3
    assert "ended" in started.process.stdout.read()
    with pytest.raises(ServerError, match="cannot be reached"):
        Client(started.url).status()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200]


def test_ctrl_c_ends_it_quietly(server):
    started = server()
    assert urllib.request.urlopen(f"{started.url}/health").status == 200
    assert started.stop(signal.SIGINT) == 0


def test_a_connection_that_sends_nothing_more_is_given_up(server, tmp_path):
    started = server("settings['timeout'] = 0.5")
    host, port = started.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        lines = [
            "POST /search HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            "Content-Length: 9",
            "",
            "{",
        ]
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 503")
    assert Client(started.url).status().items == 20


def test_a_request_whose_head_does_not_end_is_given_up(server):
    """Whatever came before: nothing, or a whole request on the same connection."""
    started = server("settings['timeout'] = 1.0")
    host, port = started.url.removeprefix("http://").split(":")
    whole = f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    for before in (b"", whole):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(before)
            if before:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(whole[:20])
            connection.settimeout(0.2)
            ended, rest = False, b""
            while not ended:  # a byte now and then, for as long as it is listened to
                try:
                    got = connection.recv(65536)
                    ended, rest = not got, rest + got
                except TimeoutError:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"a")
                except ConnectionError:
                    ended = True
            assert b"HTTP/1.1" not in rest
    assert urllib.request.urlopen(f"{started.url}/health").status == 200


def test_a_connection_is_kept_for_requests_that_are_whole(server):
    started = server("settings['timeout'] = 1.0")
    host, port = started.url.removeprefix("http://").split(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        for _ in range(4):
            connection.request("GET", "/health")
            assert connection.getresponse().read()
            kept = connection.sock
            time.sleep(0.6)
        assert kept is connection.sock


def test_a_port_that_is_taken_is_said(index):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match="--port 0"):
            serve(index, Settings(port=taken.getsockname()[1]))


def test_an_encoder_that_has_gone_is_said_at_once(index):
    with pytest.raises(DataError, match="--run RUN"):
        serve(Index.open(index.path), Settings(port=0))
