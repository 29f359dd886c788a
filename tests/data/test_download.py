"""Downloads against a server on loopback, which may break off, know no ranges or send something else."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import threading

import numpy as np
import pytest

from nearkin.data import archives
from nearkin.data.archives import download
from nearkin.errors import DataError

CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server:
    """Serves ``content`` at ``address``; every entry of ``breaks`` ends one answer after so many bytes."""

    def __init__(self):
        self.content, self.ranges, self.breaks, self.statuses, self.asked = CONTENT, True, [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/data/archive.tgz"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.asked.append(asked)
        if self.statuses:
            handler.send_error(self.statuses.pop(0))
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if asked and self.ranges and start >= len(self.content):
            handler.send_error(416)
            return
        body = self.content[start:]
        handler.send_response(206 if asked and self.ranges else 200)
        handler.send_header("Content-Length", str(len(body)))
        if asked and self.ranges:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        handler.end_headers()
        handler.wfile.write(body[: self.breaks.pop(0)] if self.breaks else body)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(archives, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "archive.tgz"


def fetch(server, file, md5=MD5):
    shown = []
    download(server.address, md5, file, lambda *done: shown.append(done))
    return shown


def test_a_file_arrives_whole_and_its_progress_is_shown(server, file):
    shown = fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert shown[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in file.parent.iterdir()] == ["archive.tgz"]


def test_a_broken_connection_continues_from_what_has_arrived(server, file):
    server.breaks = [100_000, 50_000]
    shown = fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    assert {total for _, total in shown} == {len(CONTENT)}


def test_another_process_continues_where_one_gave_up(server, file, monkeypatch):
    monkeypatch.setattr(archives, "ATTEMPTS", 1)
    server.breaks = [200_000]
    with pytest.raises(DataError, match=r"200,000 of 300,000 bytes\. 0\.2 MB have arrived; the same command continues"):
        fetch(server, file)
    fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=200000-"]


def test_a_server_without_ranges_sends_the_whole_again(server, file):
    server.ranges, server.breaks = False, [100_000]
    fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_what_arrived_whole_before_the_process_ended_is_not_fetched_again(server, file):
    file.write_bytes(CONTENT)
    fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]
    fetch(server, file)
    assert server.asked == [f"bytes={len(CONTENT)}-"] * 2, "nor another time"
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"of another file", bytes(len(CONTENT) + 7)])
def test_what_was_left_of_another_file_is_thrown_away(server, file, left):
    file.write_bytes(left)
    fetch(server, file)
    assert file.read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(left)}-", None]


def test_a_file_of_another_checksum_is_refused_and_not_kept(server, file):
    server.content = b"<html>moved</html>"
    with pytest.raises(DataError, match=f"is not the file that was published: .*, not {MD5}.*--unpack"):
        fetch(server, file)
    assert list(file.parent.iterdir()) == []


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (503, 5)])
def test_an_answer_that_will_not_change_is_not_asked_for_again(server, file, status, asked):
    server.statuses = [status] * 5
    with pytest.raises(DataError, match=rf"cannot download {server.address}: .*{status}.*--unpack FILE"):
        fetch(server, file)
    assert len(server.asked) == asked
    assert list(file.parent.iterdir()) == []


def test_an_overloaded_server_is_asked_again(server, file):
    server.statuses = [503, 500]
    fetch(server, file)
    assert file.read_bytes() == CONTENT


def test_nobody_listens(server, file):
    server.close()
    with pytest.raises(DataError, match=r"cannot download .*refused.*0\.0 MB"):
        fetch(server, file)


def test_a_full_disk_is_not_taken_for_a_broken_connection(server, file):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        download(server.address, MD5, file, full)
    assert len(server.asked) == 1
