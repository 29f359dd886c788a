from __future__ import annotations

import os
import unicodedata
import warnings

import pytest

from nearkin.data import images
from nearkin.data.folder import folder_images, list_images, read_folder
from nearkin.errors import DataError, RecipeError


def put(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def read_quietly(root, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_folder(root, **options)


def test_classes_labels_ids_and_natural_order(tmp_path):
    put(tmp_path, "class10/a.jpg", "class2/img10.jpg", "class2/img9.jpg")
    table = read_quietly(tmp_path)
    assert table.name == tmp_path.name
    assert table.class_names == ("class2", "class10")
    assert table.ids == ("class2/img9.jpg", "class2/img10.jpg", "class10/a.jpg")
    assert table.labels.tolist() == [0, 0, 1]
    assert list(table.images) == [tmp_path / name for name in table.ids]
    assert set(table.splits) == {"train"}


def test_every_image_extension_in_any_case_and_nothing_else(tmp_path):
    endings = ["jpg", "JPEG", "png", "webp", "BMP", "gif", "tif", "Tiff", "ppm", "jfif", "JP2", "j2k", "tga", "mpo"]
    put(tmp_path, *(f"a/{n}.{ending}" for n, ending in enumerate(endings)), "b/x.jpg")
    put(tmp_path, "a/notes.txt", "a/jpg", "a/Thumbs.db", "c/readme.md", "a/x.pdf", "a/x.eps", "a/x.mpg", "a/x.h5")
    table = read_quietly(tmp_path)
    assert len(table) == len(endings) + 1
    assert table.class_names == ("a", "b")


def test_hidden_files_and_folders_are_ignored(tmp_path):
    put(tmp_path, "a/1.jpg", "b/1.jpg", "a/._1.jpg", ".cache/1.jpg", "a/.ipynb_checkpoints/1.jpg", "__MACOSX/a/._1.jpg")
    assert read_quietly(tmp_path).ids == ("a/1.jpg", "b/1.jpg")


NESTED = ("a/2.jpg", "a/2019/may/1.jpg", "a/2020/1.jpg", "b/deep/er/1.jpg")


def test_nested_folders_are_refused_until_somebody_says_what_they_are(tmp_path):
    put(tmp_path, *NESTED)
    with pytest.raises(DataError, match="folders of images inside its class folders") as caught:
        read_folder(tmp_path)
    message = str(caught.value)
    assert "  a/2019/may/ (1 images)\n  a/2020/ (1 images)\n  b/deep/er/ (1 images)" in message
    assert "--class-folders deepest every folder that images lie in, 4 in all, such as 'a/2019/may'" in message
    assert "--class-folders top the 2 at the top, such as 'a'" in message


def test_nested_folders_belong_to_the_class_at_the_top(tmp_path):
    put(tmp_path, *NESTED)
    table = read_quietly(tmp_path, class_folders="top")
    assert table.class_names == ("a", "b")
    assert table.ids == NESTED


def test_nested_folders_are_classes_named_by_their_path(tmp_path):
    put(tmp_path, *NESTED)
    table = read_quietly(tmp_path, class_folders="deepest")
    assert table.class_names == ("a", "a/2019/may", "a/2020", "b/deep/er")
    assert [table.class_names[label] for label in table.labels] == ["a", "a/2019/may", "a/2020", "b/deep/er"]
    assert table.ids == NESTED


def test_nested_folders_below_splits_are_named_without_the_split(tmp_path):
    classes = ("Fruit/Apple", "Fruit/Pear", "Vegetables/Leek")
    put(tmp_path, *(f"{split}/{name}/1.jpg" for split in ("train", "test") for name in classes))
    with pytest.raises(DataError, match="3 in all, such as 'Fruit/Apple'"):
        read_folder(tmp_path)
    table = read_quietly(tmp_path, class_folders="deepest")
    assert table.class_names == classes
    assert table.splits.tolist() == ["test"] * 3 + ["train"] * 3


def test_a_folder_around_everything_is_recognised(tmp_path):
    put(tmp_path, "photos/apple/1.jpg", "photos/pear/1.jpg")
    with pytest.raises(DataError, match=r"Or give the one folder that everything lies in: '.*photos'"):
        read_folder(tmp_path)


def test_flat_folders_are_the_same_whatever_class_folders_says(tmp_path):
    put(tmp_path, "a/1.jpg", "b/1.jpg")
    assert (
        read_quietly(tmp_path, class_folders="deepest").ids
        == read_quietly(tmp_path, class_folders="top").ids
        == ("a/1.jpg", "b/1.jpg")
    )
    with pytest.raises(RecipeError, match="did you mean 'deepest'"):
        read_folder(tmp_path, class_folders="deeper")


def test_what_is_left_out_is_counted_by_ending_and_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "image_extensions", lambda: frozenset({".jpg"}))
    monkeypatch.setattr("nearkin.data.folder.image_extensions", lambda: frozenset({".jpg"}))
    put(
        tmp_path,
        "a/1.jpg",
        "b/1.jpg",
        "a/2.HEIC",
        "b/3.heic",
        "b/x.mp4",
        "b/notes.txt",
        "b/README",
        "c/4.heic",
        "a/.x.txt",
    )
    with pytest.warns(UserWarning, match=r"3 \.heic \(HEIC photos: pip install 'nearkin\[heic\]'") as caught:
        table = read_folder(tmp_path)
    assert len(caught) == 1
    assert "notes.txt" not in str(caught[0].message), "nobody means a text file to be a photo"
    assert {(files.count, files.what, files.reason) for files in table.left_out} == {
        (3, ".heic", "HEIC photos: pip install 'nearkin[heic]' to read them"),
        (1, ".mp4", "not images"),
        (1, ".txt", "not images"),
        (1, "files without an ending", "not images"),
    }


def test_a_folder_of_photos_that_cannot_be_read_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.data.folder.image_extensions", lambda: frozenset({".jpg"}))
    put(tmp_path, "a/1.heic", "b/2.heic")
    with pytest.raises(DataError, match=r"holds no images \(2 .heic, HEIC photos: pip install 'nearkin\[heic\]'"):
        read_folder(tmp_path)


def test_the_same_name_from_two_systems_is_one_class(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Äpfel") for form in ("NFC", "NFD"))
    put(tmp_path, f"train/{composed}/1.jpg", f"test/{decomposed}/2.jpg", "train/Birnen/1.jpg", "test/Birnen/1.jpg")
    table = read_quietly(tmp_path)
    assert table.class_names == ("Birnen", composed)
    assert table.split("test").labels.tolist() == [0, 1]


@pytest.mark.skipif(os.name != "posix", reason="other systems have no undecodable file names")
def test_file_names_in_an_older_encoding_can_be_written_down(tmp_path):
    put(tmp_path, "b/1.jpg")
    folder = os.path.join(os.fsencode(tmp_path), b"K\xe4se")
    try:
        os.mkdir(folder)
    except OSError:  # file systems that insist on UTF-8
        folder = os.path.join(os.fsencode(tmp_path), "Käse".encode())
        os.mkdir(folder)
    open(os.path.join(folder, b"1.jpg"), "wb").close()
    table = read_quietly(tmp_path)
    assert table.class_names == ("b", "Käse")
    assert "".join(table.ids).encode("utf-8")
    assert all(os.path.isfile(image) for image in table.images)


@pytest.mark.skipif(os.name != "posix", reason="links need rights on other systems")
def test_links_are_followed_but_not_in_circles(tmp_path):
    put(tmp_path, "elsewhere/1.jpg", "data/a/1.jpg", "data/b/1.jpg")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "a" / "2.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    (tmp_path / "data" / "a" / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "data" / "b" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "b" / "itself").symlink_to(tmp_path / "data" / "b")
    assert read_quietly(tmp_path / "data").ids == ("a/1.jpg", "a/2.jpg", "b/1.jpg", "linked/1.jpg")


@pytest.mark.parametrize(
    "folder, split",
    [
        ("val", "validation"),
        ("Test", "test"),
        ("gallery", "gallery"),
    ],
)
def test_top_folders_named_after_splits_are_splits(tmp_path, folder, split):
    put(tmp_path, "train/a/1.jpg", "train/b/1.jpg", f"{folder}/b/2.jpg", f"{folder}/c/3.jpg")
    table = read_quietly(tmp_path)
    assert table.class_names == ("a", "b", "c")
    assert table.split("train").labels.tolist() == [0, 1]
    assert table.split(split).labels.tolist() == [1, 2]
    assert table.split(split).ids == (f"{folder}/b/2.jpg", f"{folder}/c/3.jpg")


def test_a_class_of_trains_is_not_a_split(tmp_path):
    put(tmp_path, "bus/1.jpg", "train/1.jpg", "train/steam/2.jpg")
    table = read_quietly(tmp_path, class_folders="top")
    assert table.class_names == ("bus", "train")
    assert table.labels.tolist() == [0, 1, 1]


def test_a_split_without_class_folders_is_an_error_not_a_class(tmp_path):
    put(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "test/1.jpg")
    with pytest.raises(DataError, match=r"divided into test, train, but 'test' must hold class folders"):
        read_folder(tmp_path)


def test_images_next_to_class_folders_are_counted_and_ignored(tmp_path):
    put(tmp_path, "a/1.jpg", "b/1.jpg", "cover1.jpg", "cover2.jpg", ".hidden.jpg")
    with pytest.warns(
        UserWarning, match=r"^left out of .*: 2 images \(in no class folder\), for instance 'cover1.jpg'"
    ):
        table = read_folder(tmp_path)
    assert table.ids == ("a/1.jpg", "b/1.jpg")


def test_images_and_folders_next_to_splits_are_counted_and_ignored(tmp_path):
    put(tmp_path, "train/a/1.jpg", "test/b/1.jpg", "test/stray.jpg", "extra/1.jpg", "top.jpg")
    with pytest.warns(UserWarning, match=r": 3 images \(in no class folder\)"):
        table = read_folder(tmp_path)
    assert table.ids == ("test/b/1.jpg", "train/a/1.jpg")


def test_a_mistyped_path_gets_the_nearest_folder(tmp_path):
    put(tmp_path, "Photos/a/1.jpg", "Photos/b/1.jpg")
    with pytest.raises(DataError, match=r"there is no folder .*phots'; did you mean .*Photos'\?"):
        read_folder(tmp_path / "phots")
    with pytest.raises(DataError, match=r"did you mean .*Photos'\?"):
        read_folder(tmp_path / "phots" / "deeper" / "still")
    with pytest.raises(DataError, match=r"did you mean .*Photos.a'\?"):
        read_folder(tmp_path / "phots" / "a")
    with pytest.raises(DataError, match=r"there is no folder '.*zzz'$"):
        read_folder(tmp_path / "zzz")


@pytest.mark.parametrize(
    "name, advice",
    [
        ("birds.zip", "unpack it"),
        ("list.xlsx", "CSV"),
        ("list.csv", "read_manifest"),
        ("a.jpg", "a folder"),
    ],
)
def test_a_file_instead_of_a_folder(tmp_path, name, advice):
    put(tmp_path, name)
    with pytest.raises(DataError, match=advice):
        read_folder(tmp_path / name)


def test_images_without_class_folders_show_the_layout(tmp_path):
    put(tmp_path, "1.jpg", "2.jpg", "empty/notes.txt")
    with pytest.raises(DataError, match=r"holds 2 images but no class folders; one folder per class") as caught:
        read_folder(tmp_path)
    assert "    apple/\n      photo1.jpg" in str(caught.value)


def test_one_class_is_too_few(tmp_path):
    put(tmp_path, "a/1.jpg", "a/2.jpg", "empty/x.txt")
    with pytest.raises(DataError, match=r"one class only \('a'\), at least two"):
        read_folder(tmp_path)


def test_list_images_takes_all_depths_without_classes(tmp_path):
    put(tmp_path, "z.jpg", "a/10.PNG", "a/9.png", "a/.x.png", "a/readme.txt")
    assert list_images(tmp_path) == [tmp_path / name for name in ("z.jpg", "a/9.png", "a/10.PNG")]


def test_images_of_any_layout_are_labelled_by_their_folder(tmp_path):
    put(tmp_path, "top.jpg", "kiwi/1.jpg", "Fruit/Apple/1.jpg")
    table = folder_images(tmp_path)
    assert [table.class_names[label] for label in table.labels] == ["", "Fruit/Apple", "kiwi"]
    table = folder_images(tmp_path, class_folders="top")
    assert [table.class_names[label] for label in table.labels] == ["", "Fruit", "kiwi"]
    for split in ("train", "test"):
        put(tmp_path / "divided", f"{split}/kiwi/1.jpg", f"{split}/emu/1.jpg")
    assert set(folder_images(tmp_path / "divided").class_names) == {"kiwi", "emu"}


def test_list_images_of_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match=r"holds no images .*jpg"):
        list_images(tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        list_images(tmp_path / "none")


def test_relative_roots_and_home(tmp_path, monkeypatch):
    put(tmp_path, "photos/a/1.jpg", "photos/b/1.jpg")
    monkeypatch.chdir(tmp_path / "photos")
    table = read_quietly(".")
    assert (table.name, table.ids) == ("photos", ("a/1.jpg", "b/1.jpg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read_quietly("~/photos").ids == table.ids
