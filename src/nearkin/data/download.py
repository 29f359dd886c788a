"""Downloading a file that is large and known: what has arrived is kept, and nothing counts before its checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nearkin.disk import REFUSED
from nearkin.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and their total, or 0 where that is unknown."""

ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt, twice as many before each further one."""
TIMEOUT = 60
RETRIED = (408, 429, 500, 502, 503, 504)
BLOCK = 1 << 20


def download(address: str, md5: str, file: Path, progress: Progress) -> None:
    """Bring ``address`` to ``file``, which appears when its checksum is right.

    Until then the bytes are in ``file.part``. After a broken connection or in another process, the download continues
    from there, or begins again where the server sends only whole files.
    """
    if file.exists() and _md5(file) == md5:
        return
    part = file.with_name(f"{file.name}.part")
    continued = part.exists()
    _receive_patiently(address, part, progress)
    if continued and _md5(part) != md5:  # what an earlier process had left may be of another file
        part.unlink()
        _receive_patiently(address, part, progress)
    if (found := _md5(part)) != md5:
        part.unlink()
        raise DataError(
            f"{address} is not the file that was published: its MD5 checksum is {found}, not {md5}. Try again later, "
            f"or get the file by other means and give it to: nearkin datasets --unpack FILE"
        )
    os.replace(part, file)


def _receive_patiently(address: str, part: Path, progress: Progress) -> None:
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            _receive(address, part, progress)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # there is nothing behind what has arrived
                return
            failure: Exception = error
            if error.code not in RETRIED:
                break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in REFUSED:
                raise
            failure = error
    arrived = part.stat().st_size / 1e6 if part.exists() else 0.0
    raise DataError(
        f"cannot download {address}: {failure}. {arrived:,.1f} MB have arrived; the same command continues from there. "
        f"Without a connection, bring the file and give it to: nearkin datasets --unpack FILE"
    ) from failure


def _receive(address: str, part: Path, progress: Progress) -> None:
    """Append what ``part`` lacks, or write it anew where the server sends the whole."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "nearkin"} | ({"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT) as answer:
        if not (answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")):
            start = 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else 0
        with open(part, "ab" if start else "wb") as file:
            while block := answer.read1(BLOCK):
                file.write(block)
                progress(file.tell(), total)
            arrived = file.tell()
    if arrived < total:
        raise ConnectionError(f"the connection ended after {arrived:,} of {total:,} bytes")


def _md5(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
