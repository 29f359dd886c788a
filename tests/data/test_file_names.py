from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.folder import class_name, existing_images, natural_key, printable, some_of
from nearkin.errors import DataError

NFC = unicodedata.normalize("NFC", "Bäume")
NFD = unicodedata.normalize("NFD", "Bäume")


@given(st.lists(st.text(alphabet="ab019._-", max_size=8)))
def test_natural_order_compares_digits_as_numbers(names):
    def reference(name):
        return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]

    ordered = sorted(names, key=natural_key)
    assert sorted(ordered) == sorted(names)
    assert [reference(name) for name in ordered] == sorted(reference(name) for name in names)


def test_natural_order_is_total_and_ignores_case():
    assert sorted(["b", "a01", "A1", "a", "a1", "B"], key=natural_key) == ["a", "A1", "a01", "a1", "B", "b"]


def test_natural_order_takes_numbers_longer_than_python_converts():
    long = "9" * 5000
    assert sorted([long, "1" + "0" * 5000, "10"], key=natural_key) == ["10", long, "1" + "0" * 5000]


def test_both_spellings_of_an_umlaut_are_one_class():
    assert NFC != NFD
    assert class_name(NFD) == class_name(NFC) == NFC


@pytest.mark.parametrize("name", [b"K\xe4se.jpg", b"\xff\xfe", "Käse".encode()])
def test_printable_names_can_be_written_as_utf8(name):
    text = printable(os.fsdecode(name))
    assert text.encode("utf-8").decode("utf-8") == text


def test_some_of_shows_ten_and_counts_the_rest():
    lines = some_of([f"{n}.jpg" for n in range(25)]).splitlines()
    assert len(lines) == 11
    assert lines[0].strip() == "0.jpg"
    assert "15 more" in lines[-1]
    assert some_of(["a", "b"]) == "  a\n  b"


def find(base, *names):
    return existing_images(base, names, listed_in="list.csv")


def test_files_are_found_and_only_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b.jpg").touch()
    (tmp_path / "top.jpg").touch()
    names = ["sub/a b.jpg", "top.jpg", str(tmp_path / "top.jpg"), "sub/../top.jpg"]
    assert all(path.is_file() for path in find(tmp_path, *names))
    absent = ["sub", "sub/", "", "sub/b.jpg", "none/a.jpg", "top.jpg/a.jpg", "sub\0/a.jpg", "x" * 300]
    with pytest.raises(DataError, match="8 of the 12 images listed"):
        find(tmp_path, *names, *absent)


def test_decomposed_names_on_disk_match_and_the_exact_spelling_wins(tmp_path):
    (tmp_path / NFD / NFD).mkdir(parents=True)
    (tmp_path / NFD / NFD / f"{NFD}.jpg").touch()
    assert find(tmp_path, f"{NFC}/{NFC}/{NFC}.jpg")[0].is_file()
    for spelling in (NFC, NFD):
        (tmp_path / f"{spelling}.jpg").write_text(spelling)
    if len(list(tmp_path.glob("*.jpg"))) == 2:
        assert [path.read_text() for path in find(tmp_path, f"{NFC}.jpg", f"{NFD}.jpg")] == [NFC, NFD]


def test_each_folder_is_read_once(tmp_path, monkeypatch):
    names = [f"{folder}/{n}.jpg" for n in range(20) for folder in ("a", "b")]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    scanned = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(Path(path).name) or scandir(path))
    assert len(find(tmp_path, *names)) == 40
    assert sorted(scanned) == ["a", "b"]
