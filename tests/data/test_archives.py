"""Archives in their published layouts, small, and archives that would do harm."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import shutil
import stat
import tarfile
import zipfile
from types import MappingProxyType

import pytest
from tests.data.benchmarks.test_cars import write_devkit, write_mat
from tests.data.test_download import server  # noqa: F401

from nearkin.data import archives, benchmarks
from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, DataError, OutputError, RecipeError

CUB = {
    "attributes.txt": b"",
    "CUB_200_2011/README": b"",
    "CUB_200_2011/classes.txt": "".join(f"{n} {n:03d}.Bird\n" for n in range(1, 201)).encode(),
    "CUB_200_2011/images.txt": b"1 001.Bird/a.jpg\n2 001.Bird/b.jpg\n3 101.Bird/c.jpg\n",
    "CUB_200_2011/image_class_labels.txt": b"1 1\n2 1\n3 101\n",
    "CUB_200_2011/images/001.Bird/a.jpg": b"a",
    "CUB_200_2011/images/001.Bird/b.jpg": b"b",
    "CUB_200_2011/images/101.Bird/c.jpg": b"c",
}
SOP = {
    "Stanford_Online_Products/Ebay_train.txt": b"image_id class_id super_class_id path\n1 1 1 bicycle_final/1_0.JPG\n",
    "Stanford_Online_Products/Ebay_test.txt": b"image_id class_id super_class_id path\n2 2 1 bicycle_final/2_0.JPG\n",
    "Stanford_Online_Products/bicycle_final/1_0.JPG": b"",
    "Stanford_Online_Products/bicycle_final/2_0.JPG": b"",
    "__MACOSX/Stanford_Online_Products/._Ebay_test.txt": b"",
}
INSHOP_LIST = b"""3
image_name item_id evaluation_status
img/WOMEN/Tees/id_1/1.jpg id_1 train
img/WOMEN/Tees/id_2/1.jpg id_2 query
img/WOMEN/Tees/id_2/2.jpg id_2 gallery
"""
INSHOP_IMAGES = {f"img/WOMEN/Tees/{name}.jpg": b"" for name in ("id_1/1", "id_2/1", "id_2/2")}
COUNTS = {
    "cub": {"train": (2, 1), "test": (1, 1)},
    "sop": {"train": (1, 1), "test": (1, 1)},
    "inshop": {"train": (1, 1), "query": (1, 1), "gallery": (1, 1)},
    "cars": {"train": (4, 2), "test": (3, 2)},
}


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """The benchmarks with the counts of the small archives."""
    known = {
        name: dataclasses.replace(benchmark, counts=COUNTS.get(name, benchmark.counts))
        for name, benchmark in benchmarks.benchmarks().items()
    }
    for module in (archives, benchmarks):
        monkeypatch.setattr(module, "benchmarks", lambda: MappingProxyType(known))
    return known


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def unpack(root, files):
    return archives.obtain(root, [], files, lambda *_: None)


def fetch(root, names):
    return archives.obtain(root, names, [], lambda *_: None)


def entries(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:xz"])
def test_cub(tmp_path, root, mode):
    shown = []
    archive = tar(tmp_path / "CUB_200_2011.tgz", CUB, mode)
    lines = archives.obtain(root, [], [archive], lambda *done: shown.append(done))
    assert lines == [f"CUB-200-2011 in {root / 'CUB_200_2011'}: 3 images of 2 classes"]
    assert entries(root) == sorted(set(CUB) - {"attributes.txt"})
    assert (root / "CUB_200_2011/images/101.Bird/c.jpg").read_bytes() == b"c"
    assert len(benchmarks.read_benchmark("cub", root)) == 3
    assert {total for _, total in shown} == {archive.stat().st_size}
    assert archive.is_file(), "what a person brought stays"


def test_stanford_online_products(tmp_path, root):
    (line,) = unpack(root, [zipped(tmp_path / "a name.zip", SOP)])
    assert line.endswith(": 2 images of 2 classes")
    assert len(benchmarks.read_benchmark("sop", root)) == 2
    assert [path.name for path in root.iterdir()] == ["Stanford_Online_Products"]


def test_inshop_in_the_pieces_of_its_page(tmp_path, root):
    (tmp_path / "list_eval_partition.txt").write_bytes(INSHOP_LIST)
    pieces = [zipped(tmp_path / "img.zip", INSHOP_IMAGES), tmp_path / "list_eval_partition.txt"]
    (line,) = unpack(root, pieces)
    assert line.endswith(": 3 images of 2 classes")
    assert len(benchmarks.read_benchmark("inshop", root)) == 3


def test_inshop_as_one_folder_with_an_archive_inside(tmp_path, root):
    inner = zipped(tmp_path / "img.zip", INSHOP_IMAGES).read_bytes()
    top = "In-shop Clothes Retrieval Benchmark"
    files = {f"{top}/Eval/list_eval_partition.txt": INSHOP_LIST, f"{top}/Img/img.zip": inner}
    (line,) = unpack(root, [zipped(tmp_path / "drive-download-001.zip", files)])
    assert line.endswith(": 3 images of 2 classes")
    assert len(benchmarks.read_benchmark("inshop", root)) == 3
    assert not list(root.rglob("*.zip"))


def test_cars_in_halves_one_archive_after_the_other(tmp_path, root, small):
    write_devkit(tmp_path / "kit")
    brought = [tar(tmp_path / "cars_train.tgz", {f"cars_train/{n:05d}.jpg": b"" for n in range(1, 5)})]
    (line,) = unpack(root, brought)
    assert "cars196: not whole yet: there is no cars_test, no devkit/cars_meta.mat" in line
    brought = [tar(tmp_path / "cars_test.tgz", {f"cars_test/{n:05d}.jpg": b"" for n in range(1, 4)})]
    kit = {
        f"devkit/{name}": (tmp_path / "kit" / name).read_bytes() for name in ("cars_meta.mat", "cars_train_annos.mat")
    }
    brought += [tar(tmp_path / "car_devkit.tgz", kit), tmp_path / "kit" / "cars_test_annos_withlabels.mat"]
    (line,) = unpack(root, brought)
    assert line.endswith(": 7 images of 4 classes")
    assert len(benchmarks.read_benchmark("cars", root)) == 7


def test_cars_as_first_published(tmp_path, root):
    write_mat(tmp_path / "cars_annos.mat", labels=(1, 1, 1, 98, 99, 99, 196))
    images = tar(tmp_path / "car_ims.tgz", {f"car_ims/{n:06d}.jpg": b"" for n in range(1, 8)})
    (line,) = unpack(root, [images, tmp_path / "cars_annos.mat"])
    assert line.endswith(": 7 images of 4 classes")
    assert len(benchmarks.read_benchmark("cars", root)) == 7


def test_an_archive_that_lacks_images_is_told_by_the_counts(tmp_path, root):
    files = {name: content for name, content in CUB.items() if not name.endswith("c.jpg")}
    with pytest.raises(DataError, match=r"1 of the 3 images listed in images.txt are missing[\s\S]*101.Bird/c.jpg"):
        unpack(root, [tar(tmp_path / "x.tgz", files)])
    assert unpack(root, [tar(tmp_path / "x.tgz", CUB)]), "another puts it right"


def test_what_is_there_already_is_completed(tmp_path, root):
    old = root / "cub" / "images" / "001.Bird"
    old.mkdir(parents=True)
    (old / "a.jpg").write_bytes(b"old")
    (old / "mine.jpg").touch()
    unpack(root, [tar(tmp_path / "x.tgz", CUB)])
    assert (old / "a.jpg").read_bytes() == b"a"
    assert (old / "mine.jpg").exists()
    assert [path.name for path in root.iterdir()] == ["cub"], "in the folder that is found"


@pytest.mark.parametrize(
    "name",
    [
        "../outside.jpg",
        "CUB_200_2011/../../outside.jpg",
        "/outside.jpg",
        "CUB_200_2011/images/..\\..\\..\\outside.jpg",
        "C:\\outside.jpg",
    ],
)
@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, root, name, pack):
    archive = pack(tmp_path / "x.tgz", {**CUB, name: b"harm"})
    with pytest.raises(DataError, match="outside its folder"):
        unpack(root, [archive])
    assert entries(tmp_path) == ["x.tgz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_not_made(tmp_path, root, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        member = tarfile.TarInfo("CUB_200_2011/images")
        member.type, member.linkname = kind, str(tmp_path)
        packed.addfile(member)
        packed.addfile(tarfile.TarInfo("CUB_200_2011/images/inside.jpg"))
    unpack(root, [tmp_path / "x.tar"])
    assert entries(tmp_path) == ["data/CUB_200_2011/images/inside.jpg", "x.tar"]
    assert not (root / "CUB_200_2011/images").is_symlink()


def test_a_link_in_a_zip_is_not_made(tmp_path, root):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        member = zipfile.ZipInfo("CUB_200_2011/images")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(member, str(tmp_path))
    unpack(root, [tmp_path / "x.zip"])
    assert not (root / "CUB_200_2011/images").is_symlink()


def big(files):
    return {**files, "CUB_200_2011/images/101.Bird/c.jpg": os.urandom(100_000)}


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_an_archive_that_is_cut_short_leaves_nothing(tmp_path, root, pack, share):
    archive = pack(tmp_path / "x.tgz", big(CUB))
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * share)])
    with pytest.raises(DataError, match="Bring it again, whole"):
        unpack(root, [archive])
    assert entries(tmp_path) == ["x.tgz"]


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_byte_that_changed_on_the_way_is_noticed(tmp_path, root, pack):
    archive = pack(tmp_path / "x.tgz", big(CUB))
    content = bytearray(archive.read_bytes())
    content[50_000] ^= 1  # amid bytes that do not compress, which a tar file alone would not notice
    archive.write_bytes(content)
    with pytest.raises(DataError, match="Bring it again, whole"):
        unpack(root, [archive])
    assert entries(tmp_path) == ["x.tgz"]


def test_an_archive_with_a_password_is_one_for_another_program(tmp_path, root):
    archive = zipped(tmp_path / "x.zip", SOP)
    content = bytearray(archive.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(mark)
        while start >= 0:
            content[start + offset] |= 1
            start = content.find(mark, start + 4)
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"password required.*another program"):
        unpack(root, [archive])


def test_other_archives_and_files_are_refused(tmp_path, root):
    with pytest.raises(DataError, match=r"photos.zip' is of no benchmark that is known \(.*CUB-200-2011"):
        unpack(root, [zipped(tmp_path / "photos.zip", {"photos/1.jpg": b"", "__MACOSX/x": b""})])
    with pytest.raises(DataError, match=r"no archive '.*phots.zip'; did you mean '.*photos.zip'"):
        unpack(root, [tmp_path / "phots.zip"])
    (tmp_path / "page.zip").write_text("<html>sign in</html>" * 100)
    with pytest.raises(DataError, match="Bring it again, whole"):
        unpack(root, [tmp_path / "page.zip"])
    assert not root.exists(), "and no folder stays behind"


def test_what_a_killed_process_left_is_not_taken_for_the_archive(tmp_path, root):
    left = root / archives.WORKSPACE / "files" / "images" / "001.Bird"
    left.mkdir(parents=True)
    (left / "half.jpg").touch()
    unpack(root, [tar(tmp_path / "x.tgz", CUB)])
    assert not list(root.rglob("half.jpg"))


def test_two_processes_do_not_mix(tmp_path, root):
    archive = tar(tmp_path / "x.tgz", CUB)
    with sole_writer_of(root / archives.WORKSPACE), pytest.raises(BusyError, match="another folder with --data-root"):
        unpack(root, [archive])


def test_a_full_disk_leaves_nothing_and_names_the_option(tmp_path, root, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OutputError, match=r"No space left on device .*MB free.*--data-root"):
        unpack(root, [tar(tmp_path / "x.tgz", CUB)])
    assert entries(tmp_path) == ["x.tgz"]


def test_a_download_is_unpacked_and_not_repeated(tmp_path, root, small, server):  # noqa: F811
    server.content = tar(tmp_path / "x.tgz", CUB).read_bytes()
    server.breaks = [100]
    md5 = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    small["cub"] = dataclasses.replace(small["cub"], address=server.address, md5=md5)
    assert fetch(root, ["cub"])
    assert server.asked == [None, "bytes=100-"]
    assert [path.name for path in root.iterdir()] == ["CUB_200_2011"]
    assert fetch(root, ["cub"])
    assert len(server.asked) == 2, "it is here"


def test_a_download_that_was_not_unpacked_is_not_repeated(tmp_path, root, small, server, monkeypatch):  # noqa: F811
    server.content = tar(tmp_path / "x.tgz", CUB).read_bytes()
    md5 = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
    small["cub"] = dataclasses.replace(small["cub"], address=server.address, md5=md5)
    genuine = shutil.copyfileobj
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        fetch(root, ["cub"])
    monkeypatch.setattr(shutil, "copyfileobj", genuine)
    fetch(root, ["cub"])
    assert server.asked == [None, f"bytes={len(server.content)}-"]
    assert len(benchmarks.read_benchmark("cub", root)) == 3


def test_what_cannot_be_downloaded_says_what_to_bring(root):
    with pytest.raises(RecipeError, match=r"'sop' cannot be downloaded: bring Stanford_Online_Products.zip.*--unpack"):
        fetch(root, ["sop"])
    with pytest.raises(RecipeError, match="'cup' cannot be downloaded: did you mean 'cub'"):
        fetch(root, ["cup"])
    assert not root.exists()
