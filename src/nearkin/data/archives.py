"""Bringing benchmarks to this machine: their published archives, unpacked to where recipes find them.

An archive is unpacked into a hidden folder, and moved to its place when it has been read to the end. Archives come
from strangers: a name that leads out of that folder, a link and a device are refused.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from nearkin.data.benchmarks import Benchmark, benchmarks
from nearkin.data.download import BLOCK, Progress, download
from nearkin.data.folder import suggest_path
from nearkin.disk import sole_writer_of, writing
from nearkin.errors import DataError, RecipeError, did_you_mean

WORKSPACE = ".unpacking"
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
_UNREADABLE = (RuntimeError, NotImplementedError)
"""What zipfile raises for a password, and for a compression that it does not know."""


def obtain(
    root: Path, *, downloads: Sequence[str] = (), archives: Sequence[Path] = (), progress: Progress = lambda *_: None
) -> list[str]:
    """Download and unpack benchmarks below ``root``, and return their names.

    One that then has all its key files is read, so that its images and classes are counted.
    """
    for name in downloads:
        if name not in benchmarks():
            raise RecipeError(f"unknown benchmark {name!r}; {did_you_mean(name, benchmarks())}")
        benchmark = benchmarks()[name]
        if not (benchmark.downloads or benchmark.embedded):
            raise RecipeError(f"{benchmark.title} has no public address: {benchmark.how_to_get}")
    for archive in archives:
        if not archive.is_file():
            raise DataError(f"there is no archive {str(archive)!r}{suggest_path(archive)}")
        if not os.access(archive, os.R_OK):
            raise DataError(f"{str(archive)!r} must not be read here: change its permissions")
    workspace, obtained = root / WORKSPACE, list(downloads)
    with sole_writer_of(workspace, option="--data-root"), writing(root, option="--data-root"):
        for name in downloads:
            folder = benchmarks()[name].find(root)
            if folder and not benchmarks()[name].problem(folder):
                continue
            for address, md5 in benchmarks()[name].downloads.items():
                file = workspace / address.rpartition("/")[2]
                download(address, md5, file, progress)
                _unpack(file, root, [benchmarks()[name]], progress)
                file.unlink()
        obtained += [_unpack(archive, root, list(benchmarks().values()), progress).name for archive in archives]
    for name in dict.fromkeys(obtained):
        folder = benchmarks()[name].find(root)
        if folder and not benchmarks()[name].problem(folder):
            benchmarks()[name].read(folder)
    return list(dict.fromkeys(obtained))


def _unpack(archive: Path, root: Path, candidates: Sequence[Benchmark], progress: Progress) -> Benchmark:
    """Put the files of an archive where its benchmark is found, and return that."""
    staged = root / WORKSPACE / "files"
    shutil.rmtree(staged, ignore_errors=True)  # of a process that was killed
    try:
        benchmark = _extract(archive, staged, candidates, progress)
        for part in benchmark.parts:
            for inner in staged.rglob(part) if part.endswith(".zip") else ():
                _extract(inner, inner.parent, [benchmark], progress)
                inner.unlink()
        _move(staged, benchmark.find(root) or root / benchmark.folders[0])
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return benchmark


def _extract(archive: Path, folder: Path, candidates: Sequence[Benchmark], progress: Progress) -> Benchmark:
    """Write the files of the benchmark that the archive is of; what lies beside them is left out."""
    benchmark = None
    try:
        for name, content in _files(archive, candidates, progress):
            path = PureWindowsPath(name)  # for which both kinds of slashes divide
            if path.anchor or ".." in path.parts or "\0" in name:
                raise DataError(f"it holds {name!r}, which would be written outside its folder")
            if benchmark is None:
                owners = [owner for owner in candidates if _place(owner, path.parts)]
                if len(owners) > 1:
                    titles = " or ".join(owner.title for owner in owners)
                    raise DataError(f"it can be of {titles}: put it into the right folder yourself")
                benchmark = owners[0] if owners else None
            if benchmark and (place := _place(benchmark, path.parts)):
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as file:
                    shutil.copyfileobj(content, file, BLOCK)
    except DataError as error:
        raise DataError(f"{str(archive)!r} is not unpacked: {error}") from error
    except _DAMAGED as error:
        raise DataError(f"{str(archive)!r} is no whole archive (zip, tar, tgz): {error}. Bring it again") from error
    except _UNREADABLE as error:
        raise DataError(f"{str(archive)!r} cannot be unpacked here: {error}. Unpack it with another program") from error
    if benchmark is None:
        known = ", ".join(sorted({owner.title for owner in candidates if owner.folders}))
        raise DataError(
            f"{str(archive)!r} is the archive of no benchmark ({known}). Unpack it yourself to where nearkin datasets "
            f"expects it"
        )
    return benchmark


def _place(benchmark: Benchmark, parts: Sequence[str]) -> PurePosixPath | None:
    """Where in the benchmark's folder a file of its archive belongs; None for a file that is not of it."""
    if len(parts) > 1 and parts[0].casefold() in (folder.casefold() for folder in benchmark.folders):
        return PurePosixPath(*parts[1:])
    return PurePosixPath(*parts) if parts and parts[0] in benchmark.parts else None


def _files(archive: Path, candidates: Iterable[Benchmark], progress: Progress) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file in an archive, or of the one file that is published as it is."""
    size = archive.stat().st_size
    with open(archive, "rb") as file:
        start = file.read(2)
        file.seek(0)
        if not archive.name.endswith(".zip") and any(archive.name in benchmark.parts for benchmark in candidates):
            yield archive.name, file
        elif start == b"PK":
            with zipfile.ZipFile(file) as packed:
                for member in packed.infolist():
                    if stat.S_ISLNK(member.external_attr >> 16):
                        raise DataError(f"it holds the link {member.filename!r}")
                    if not member.is_dir():
                        with packed.open(member) as content:
                            yield member.filename, content
                        progress(file.tell(), size)
        else:
            opened = gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file
            with tarfile.open(fileobj=opened, mode="r|*") as tar:
                for entry in tar:
                    progress(file.tell(), size)
                    if not (entry.isreg() or entry.isdir()):
                        raise DataError(f"it holds {entry.name!r}, a link or a device")
                    if entry.isreg() and (extracted := tar.extractfile(entry)):
                        yield entry.name, extracted
                while opened.read(BLOCK):  # to the end, where gzip has its checksum
                    pass


def _move(source: Path, target: Path) -> None:
    """Move a file or a folder; into a folder that is there, file by file."""
    if source.is_dir() and target.is_dir():
        for inner in source.iterdir():
            _move(inner, target / inner.name)
    else:
        os.replace(source, target)
