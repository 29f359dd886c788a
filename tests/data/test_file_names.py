from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data.file_names import Listing, class_name, natural_key, readable, some_of

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
def test_readable_names_can_be_written_as_utf8(name):
    text = readable(os.fsdecode(name))
    assert text.encode("utf-8").decode("utf-8") == text


def test_some_of_shows_ten_and_counts_the_rest():
    lines = some_of([f"{n}.jpg" for n in range(25)]).splitlines()
    assert len(lines) == 11
    assert lines[0].strip() == "0.jpg"
    assert "15 more" in lines[-1]


def test_some_of_does_not_count_when_all_are_shown():
    assert some_of(["a", "b"]) == "  a\n  b"


def test_listing_finds_files_and_only_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b.jpg").touch()
    (tmp_path / "top.jpg").touch()
    listing = Listing(tmp_path)
    assert listing["sub/a b.jpg"] == tmp_path / "sub" / "a b.jpg"
    assert listing["top.jpg"] == tmp_path / "top.jpg"
    assert listing[str(tmp_path / "top.jpg")] == tmp_path / "top.jpg"
    for absent in ("sub", "sub/", "", "sub/b.jpg", "none/a.jpg", "top.jpg/a.jpg", "sub\0/a.jpg", "x" * 300):
        assert listing[absent] is None


def test_listing_matches_decomposed_names_on_disk(tmp_path):
    (tmp_path / NFD / NFD).mkdir(parents=True)
    (tmp_path / NFD / NFD / f"{NFD}.jpg").touch()
    found = Listing(tmp_path)[f"{NFC}/{NFC}/{NFC}.jpg"]
    assert found is not None
    assert found.is_file()


def test_listing_prefers_the_exact_spelling(tmp_path):
    for spelling in (NFC, NFD):
        (tmp_path / f"{spelling}.jpg").write_text(spelling)
    if len(os.listdir(tmp_path)) == 2:
        listing = Listing(tmp_path)
        assert [listing[f"{spelling}.jpg"].read_text() for spelling in (NFC, NFD)] == [NFC, NFD]
    assert Listing(tmp_path)[f"{NFC}.jpg"].is_file()


def test_listing_reads_each_folder_once(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for n in range(20):
            (tmp_path / folder / f"{n}.jpg").touch()
    scanned = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scanned.append(Path(path).name) or scandir(path))
    listing = Listing(tmp_path)
    assert all(listing[f"{folder}/{n}.jpg"] for n in range(20) for folder in ("a", "b"))
    assert sorted(scanned) == ["a", "b"]
