from __future__ import annotations

import json
import unicodedata

import pytest

from nearkin.data.folder import read_folder
from nearkin.data.manifest import read_manifest
from nearkin.data.source import read_source
from nearkin.errors import DataError

IMAGES = ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")


@pytest.fixture
def folder(tmp_path):
    for name in IMAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def write(folder, text, name="list.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def test_a_list_of_a_folder_is_the_same_table_as_the_folder(folder):
    rows = "".join(f"{name},{name[0]}\n" for name in IMAGES)
    listed, read = read_manifest(write(folder, "path,label\n" + rows)), read_folder(folder)
    assert listed.name == "list"
    assert list(listed.images) == list(read.images)
    assert listed.ids == read.ids
    assert listed.class_names == read.class_names
    assert listed.labels.tolist() == read.labels.tolist()
    assert listed.splits.tolist() == read.splits.tolist()


@pytest.mark.parametrize("path_column", ["path", "image", "file", "filename", "Path", " IMAGE "])
@pytest.mark.parametrize("label_column", ["label", "class", "Label"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_column_names_and_delimiters(folder, path_column, label_column, delimiter):
    lines = [(label_column, path_column, "note"), ("x", "a/1.jpg", "1,5"), ("y", "b/1.jpg", "2;5")]
    text = "\r\n".join(delimiter.join(f'"{field}"' for field in line) for line in lines)
    table = read_manifest(write(folder, text, encoding="utf-8-sig"))
    assert table.ids == ("a/1.jpg", "b/1.jpg")
    assert table.class_names == ("x", "y")
    assert table.columns["note"].tolist() == ["1,5", "2;5"]


def test_splits_ids_and_other_columns(folder):
    text = (
        "id;split;path;label;Colour;filename\n"
        "007;train;a/1.jpg;010;red;x\n"
        "7;val;a/2.jpg;10;;y\n"
        "8;Query;b/1.jpg;010;blue;z\n"
    )
    table = read_manifest(write(folder, text))
    assert table.ids == ("007", "7", "8")
    assert table.class_names == ("010", "10")
    assert table.splits.tolist() == ["train", "validation", "query"]
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        "Colour": ["red", "", "blue"],
        "filename": ["x", "y", "z"],
    }


def test_json_lines(folder):
    records = [
        {"image": "a/1.jpg", "class": 7, "split": "train", "price": 1.5, "tags": ["x", "ü"]},
        {"image": "b/1.jpg", "class": "8", "split": "test", "sold": None},
    ]
    path = write(folder, "\n\n".join(json.dumps(record) for record in records) + "\n", name="list.jsonl")
    table = read_manifest(path)
    assert table.class_names == ("7", "8")
    assert table.splits.tolist() == ["train", "test"]
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        "price": ["1.5", ""],
        "tags": ['["x", "ü"]', ""],
        "sold": ["", ""],
    }


def test_relative_and_absolute_paths_and_those_from_windows(folder):
    text = f"path,label\na\\1.jpg,x\n{folder / 'b' / '1.jpg'},y\n"
    table = read_manifest(write(folder, text))
    assert list(table.images) == [folder / "a" / "1.jpg", folder / "b" / "1.jpg"]
    assert table.ids[0] == "a/1.jpg"


def test_spaces_umlauts_and_two_spellings_of_one_label(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Bär 1") for form in ("NFC", "NFD"))
    for name in (composed, "b"):
        (tmp_path / f"{name}.jpg").touch()
    (tmp_path / decomposed).mkdir()
    (tmp_path / decomposed / "c.jpg").touch()
    text = f"path,label\n{decomposed}.jpg,{decomposed}\n{composed}/c.jpg,{composed}\nb.jpg,Wolf\n"
    table = read_manifest(write(tmp_path, text))
    assert table.class_names == (composed, "Wolf")
    assert table.labels.tolist() == [0, 0, 1]
    assert all(image.is_file() for image in table.images)


def test_leftovers_of_spreadsheets_are_passed_over(folder):
    text = "sep=;\r\n\r\npath;label;;\r\na/1.jpg;x;;\r\n;;;\r\n b/1.jpg ; y;;;;\r\n"
    table = read_manifest(write(folder, text, encoding="utf-8-sig"))
    assert (table.ids, table.class_names, dict(table.columns)) == (("a/1.jpg", "b/1.jpg"), ("x", "y"), {})


def test_line_numbers_count_lines_inside_quotes(folder):
    text = 'path,label,note\na/1.jpg,x,"two\nlines"\nb/1.jpg,,\n'
    with pytest.raises(DataError, match=r"list.csv' line 4: column 'label' is empty"):
        read_manifest(write(folder, text))


@pytest.mark.parametrize(
    "text, message",
    [
        ("path,label\na/1.jpg,x\na/2.jpg,\n", r"line 3: column 'label' is empty"),
        ("path,label\n,x\n", r"line 2: column 'path' is empty"),
        (
            "path,label,split\na/1.jpg,x,trian\nb/1.jpg,y,test\n",
            r"line 2: column 'split' .* 'trian'; did you mean 'train'",
        ),
        ("path,label,split\na/1.jpg,x,\nb/1.jpg,y,test\n", r"line 2: column 'split' is empty"),
        ("sep=,\npath,label\na/1.jpg,x\nb/1.jpg\n", r"line 4: 1 fields where the header has 2 columns"),
        ("path,label\na/1.jpg,x,extra\n", r"line 2: 3 fields where the header has 2 columns"),
        ("path,label,Label\na/1.jpg,x,y\n", r"line 1: two columns are called 'label'"),
        ("path,label,id\na/1.jpg,x,1\nb/1.jpg,y,1\n", r"line 3: '1' is already in line 2"),
        ("path,label\na/1.jpg,x\na\\1.jpg,y\n", r"line 3: 'a/1.jpg' is already in line 2"),
        ('path,label\n"a/1.jpg,x\n', r"line 2: not CSV"),
        ("picture,label\na/1.jpg,x\n", r"needs a column 'path' or 'image' .*; its columns are 'picture', 'label'"),
        ("path,kind\na/1.jpg,x\n", r"needs a column 'label' or 'class'; its columns are 'path', 'kind'"),
        ("a/1.jpg\nb/1.jpg\n", r"needs a column 'path' .* and 'label' or 'class'"),
        ("path,label\na/1.jpg,x\na/2.jpg,x\n", r"one class only \('x'\)"),
        ("path,label\n", "lists no images"),
        ("", "lists no images"),
        (" \n", "lists no images"),
        ('{"path": "a/1.jpg", "label": "x"}\n{"path": "b/1.jpg"}\n', r"line 2: column 'label' is empty"),
        ('{"path": "a/1.jpg", "label": "x"}\n{"path": "b/1.jpg", \n', r"line 2: not a JSON object"),
        ('{"path": "a/1.jpg", "label": "x"}\n7\n', r"line 2: a JSON object is needed, got '7'"),
    ],
)
def test_errors_name_line_and_column(folder, text, message):
    with pytest.raises(DataError, match=message):
        read_manifest(write(folder, text))


def test_a_json_array_is_not_json_lines(folder):
    with pytest.raises(DataError, match="one object per line"):
        read_manifest(write(folder, '[{"path": "a/1.jpg", "label": "x"}]', name="list.json"))


def test_missing_files_are_counted_and_the_first_ten_listed(folder):
    rows = "".join(f"a/{n}.jpg,{n % 2}\n" for n in range(1, 26))
    with pytest.raises(DataError, match=r"23 of the 25 images .* are missing; their paths start from") as caught:
        read_manifest(write(folder, "path,label\n" + rows))
    lines = str(caught.value).splitlines()
    assert lines[1].strip() == "line 4: a/3.jpg"
    assert lines[-1].strip() == "… and 13 more"
    assert len(lines) == 12


def test_other_encodings_are_named_with_their_line(folder):
    with pytest.raises(DataError, match=r"line 3: byte 0xe4 is not UTF-8; save"):
        read_manifest(write(folder, "path,label\na/1.jpg,x\nb/1.jpg,Bär\n", encoding="latin-1"))


def test_what_is_not_a_list(folder):
    with pytest.raises(DataError, match="cannot read"):
        read_manifest(folder / "none.csv")
    with pytest.raises(DataError, match=r"is a folder: .*read_folder"):
        read_manifest(folder)
    (folder / "list.xlsx").write_bytes(b"PK\x03\x04rest")
    with pytest.raises(DataError, match="save it as 'CSV UTF-8'"):
        read_manifest(folder / "list.xlsx")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("owl.jpg", b"\xff\xd8\xff\xe0 whatever", "is one image: give a folder with one folder per class"),
        ("owl.heic", b"\0\0\0\x18ftypheic", "is one image"),
        ("owls.zip", b"PK\x03\x04", "is an archive"),
        ("owls.tar.gz", b"\x1f\x8b\x08", "is an archive"),
    ],
)
def test_a_file_that_is_no_list_is_named_for_what_it_is(tmp_path, name, content, named):
    (tmp_path / name).write_bytes(content)
    for read in (read_manifest, read_source):
        with pytest.raises(DataError, match=named) as caught:
            read(tmp_path / name)
        assert "UTF-8;" not in str(caught.value)


def test_a_list_to_be_embedded_needs_no_labels(folder):
    table = read_manifest(write(folder, "path\na/1.jpg\nb/1.jpg\n"), need_labels=False)
    assert (table.ids, table.class_names) == (("a/1.jpg", "b/1.jpg"), ("",))
    table = read_manifest(write(folder, "path,label\na/1.jpg,\nb/1.jpg,emu\n"), need_labels=False)
    assert [table.class_names[label] for label in table.labels] == ["", "emu"]
