"""Bringing benchmarks to this machine: their archives are downloaded, and unpacked to where recipes find them.

An archive is unpacked into a hidden folder, which is moved into place once the archive has been read to its end.
Archives come from strangers: a name that leads out of that folder is refused, and links and devices are not created.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import IO

from nearkin.data.benchmarks import Benchmark, benchmarks
from nearkin.data.folder import suggest_path
from nearkin.disk import REFUSED, sole_writer_of, writing
from nearkin.errors import DataError, RecipeError, did_you_mean

WORKSPACE = ".unpacking"
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)

Progress = Callable[[int, int], None]  # bytes done, and their total or 0 where that is unknown
BLOCK = 1 << 20
ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt at a download, twice as many before each further one."""


def obtain(root: Path, names: Sequence[str], archives: Sequence[Path], progress: Progress) -> list[str]:
    """Download the named benchmarks and unpack ``archives`` below ``root``.

    A benchmark that is complete is read once. Returns a line for each, with the number of its images and classes.
    """
    known = {name: benchmark for name, benchmark in benchmarks().items() if benchmark.address}
    for name in names:
        if name not in known:
            advice = benchmarks()[name].how_to_get if name in benchmarks() else did_you_mean(name, known)
            raise RecipeError(f"{name!r} cannot be downloaded: {advice}")
    for archive in archives:
        if not archive.is_file():
            raise DataError(f"there is no archive {str(archive)!r}{suggest_path(archive)}")
    obtained = [known[name] for name in names]
    with sole_writer_of(root / WORKSPACE, flag="--data-root"), writing(root, flag="--data-root"):
        for benchmark in obtained:
            folder = benchmark.find(root)
            if folder is None or benchmark.problem(folder):
                file = root / WORKSPACE / benchmark.address.rpartition("/")[2]
                download(benchmark.address, benchmark.md5, file, progress)
                _unpack(file, root, progress)
                file.unlink()
        obtained += [_unpack(archive, root, progress) for archive in archives]
    lines = []
    for benchmark in {benchmark.name: benchmark for benchmark in obtained}.values():
        folder = benchmark.find(root) or root
        table = None if (problem := benchmark.problem(folder)) else benchmark.read(folder)
        counts = f"{len(table):,} images of {len(table.classes()):,} classes" if table else f"not whole yet: {problem}"
        lines.append(f"{benchmark.title} in {folder}: {counts}")
    return lines


def _unpack(archive: Path, root: Path, progress: Progress) -> Benchmark:
    """Put the files of an archive where its benchmark is found, and return the benchmark."""
    staged = root / WORKSPACE / "files"
    shutil.rmtree(staged, ignore_errors=True)  # of a process that was killed
    try:
        benchmark = _extract(archive, staged, progress)
        for inner in [file for part in benchmark.parts if part.endswith(".zip") for file in staged.rglob(part)]:
            _extract(inner, inner.parent, progress)
            inner.unlink()
        if folder := benchmark.find(root):
            shutil.copytree(staged, folder, dirs_exist_ok=True, copy_function=os.replace)
        else:
            os.replace(staged, root / benchmark.folders[0])
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return benchmark


def _extract(archive: Path, folder: Path, progress: Progress) -> Benchmark:
    """Write the benchmark's files into ``folder``; other files in the archive are left out."""
    owner, candidates = None, list(benchmarks().values())
    try:
        for name, content in _files(archive, progress):
            path = PureWindowsPath(name)  # it splits at / and at \
            if path.anchor or ".." in path.parts or "\0" in name:
                raise DataError(f"{str(archive)!r} is not unpacked: {name!r} would be written outside its folder")
            owner = owner or next((benchmark for benchmark in candidates if _place(benchmark, path)), None)
            if owner and (place := _place(owner, path)):
                target = folder.joinpath(*place)
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as file:
                    shutil.copyfileobj(content, file, BLOCK)
    except (*DAMAGED, RuntimeError) as error:  # the latter for a password or an unknown compression
        advice = "Bring it again, whole" if isinstance(error, DAMAGED) else "Unpack it with another program"
        raise DataError(f"{str(archive)!r} cannot be unpacked (zip, tar, tgz): {error}. {advice}") from error
    if owner is None:
        known = ", ".join(benchmark.title for benchmark in candidates if benchmark.how_to_get)
        raise DataError(f"{str(archive)!r} is of no benchmark that is known ({known}): unpack it yourself")
    return owner


def _place(benchmark: Benchmark, path: PureWindowsPath) -> tuple[str, ...]:
    """Where a file of the archive belongs in the benchmark's folder; empty for a file that is not part of it."""
    top, *below = path.parts or ("",)
    if below and top.casefold() in (folder.casefold() for folder in benchmark.folders):
        return tuple(below)
    return path.parts if top in benchmark.parts else ()


def _files(archive: Path, progress: Progress) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file in an archive, or of a single file that is published as it is."""
    size = archive.stat().st_size
    with open(archive, "rb") as file:
        start = file.read(2)
        file.seek(0)
        if archive.suffix in (".mat", ".txt"):
            yield archive.name, file
        elif start == b"PK":
            with zipfile.ZipFile(file) as packed:
                for member in packed.infolist():
                    if not member.is_dir():
                        with packed.open(member) as content:
                            yield member.filename, content
                        progress(file.tell(), size)
        else:
            opened = gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file
            with tarfile.open(fileobj=opened, mode="r|*") as tar:
                for entry in tar:
                    progress(file.tell(), size)
                    if entry.isreg() and (extracted := tar.extractfile(entry)):
                        yield entry.name, extracted
                while opened.read(BLOCK):  # to the end, where gzip has its checksum
                    pass


def download(address: str, md5: str, file: Path, progress: Progress) -> None:
    """Download ``address`` to ``file`` and compare the checksum.

    An interrupted download continues after what is in ``file`` already, or begins again where the server sends only
    whole files.
    """
    for _ in range(2 if file.exists() else 1):  # what an earlier process left may be of another file
        _receive(address, file, progress)
        with open(file, "rb") as content:
            found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found == md5:
            return
        file.unlink()
    raise DataError(
        f"{address} is not the file that was published: its MD5 checksum is {found}, not {md5}. Try again later, or "
        f"get the file by other means and give it to: nearkin datasets --unpack FILE"
    )


def _receive(address: str, file: Path, progress: Progress) -> None:
    """Append what ``file`` still lacks, in several attempts if need be."""
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * 2 ** (attempt - 1) if attempt else 0)
        start = file.stat().st_size if file.exists() else 0
        headers = {"User-Agent": "nearkin"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
                start = start if answer.status == 206 else 0  # else the server sends the whole file
                length = answer.headers.get("Content-Length")
                total = start + int(length) if length else 0
                with open(file, "ab" if start else "wb") as output:
                    while block := answer.read1(BLOCK):
                        output.write(block)
                        progress(output.tell(), total)
                    if output.tell() >= total:
                        return
                    failure = ConnectionError(f"the connection ended after {output.tell():,} of {total:,} bytes")
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # the whole file has arrived already
                return
            failure = error
            if error.code < 500:  # another attempt would get the same answer
                break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in REFUSED:  # by the disk
                raise
            failure = error
    arrived = file.stat().st_size / 1e6 if file.exists() else 0.0
    raise DataError(
        f"cannot download {address}: {failure}. {arrived:,.1f} MB have arrived; the same command continues from there. "
        f"Without a connection, bring the file and give it to: nearkin datasets --unpack FILE"
    ) from failure
