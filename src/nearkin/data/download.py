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

Progress = Callable[[int, int], None]  # the bytes that are done and their total, or 0 where that is unknown
BLOCK = 1 << 20
ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt, twice as many before each further one."""


def download(address: str, md5: str, file: Path, progress: Progress) -> None:
    """Bring ``address`` to ``file``, which appears when its checksum is right.

    Until then the bytes are in ``file.part``. After a broken connection or in another process, the download continues
    from there, or begins again where the server sends only whole files.
    """
    part = file.with_name(f"{file.name}.part")
    if file.exists():
        os.replace(file, part)
    for _ in range(2 if part.exists() else 1):  # what an earlier process left may be of another file
        _receive(address, part, progress)
        with open(part, "rb") as content:
            found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found == md5:
            os.replace(part, file)
            return
        part.unlink()
    raise DataError(
        f"{address} is not the file that was published: its MD5 checksum is {found}, not {md5}. Try again later, or "
        f"get the file by other means and give it to: nearkin datasets --unpack FILE"
    )


def _receive(address: str, part: Path, progress: Progress) -> None:
    """Append what ``part`` lacks, in several attempts if need be."""
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0)
        start = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": "nearkin"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
                start = start if answer.status == 206 else 0  # else the server sends the whole
                length = answer.headers.get("Content-Length")
                total = start + int(length) if length else 0
                with open(part, "ab" if start else "wb") as file:
                    while block := answer.read1(BLOCK):
                        file.write(block)
                        progress(file.tell(), total)
                    if file.tell() >= total:
                        return
                    failure = ConnectionError(f"the connection ended after {file.tell():,} of {total:,} bytes")
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # there is nothing behind what has arrived
                return
            failure = error
            if error.code < 500:  # another attempt would get the same answer
                break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in REFUSED:  # by the disk
                raise
            failure = error
    arrived = part.stat().st_size / 1e6 if part.exists() else 0.0
    raise DataError(
        f"cannot download {address}: {failure}. {arrived:,.1f} MB have arrived; the same command continues from there. "
        f"Without a connection, bring the file and give it to: nearkin datasets --unpack FILE"
    ) from failure
