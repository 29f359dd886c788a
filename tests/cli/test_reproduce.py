"""``nearkin reproduce`` as a person meets it, on images that take a second to learn."""

from __future__ import annotations

import csv
import io
import json

import pytest

from nearkin import cli

TINY = [
    *("--backbone", "small", "encoder.dim=4", "protocol.test_share=0.35"),
    *("data.image_size=8", "data.workers=1", "data.transform=mild"),
    *("training.epochs=2", "training.max_steps=2", "training.batch_size=8", "training.device=cpu"),
]


@pytest.fixture
def reproduce(monkeypatch, capsys, tmp_path):
    """Run the command; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARKIN_DATA", raising=False)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["nearkin", "reproduce", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_list_has_every_table_and_what_is_missing(reproduce):
    code, out, _ = reproduce("--json")
    assert code == 0
    listed = {entry["table"]: entry for entry in json.loads(out)}
    assert len(listed) == 69
    assert listed["ccp/table-6"]["data"] == ["cub", "cars"]
    assert listed["ccp/table-6"]["missing_data"] == ["cub", "cars"]
    assert listed["ccp/table-6"]["missing_weights"] == ["bn_inception"]
    assert listed["ccp/table-2"]["same_as"] == ["ccp/table-5", "ccp/table-6"]
    assert listed["vcpa/figure-1"]["rows"] == 0
    code, out, _ = reproduce("profs")
    assert "profs/figure-1" in out
    assert "ccp/" not in out


def test_rows_are_listed_as_commands_and_nothing_is_run(reproduce, tmp_path):
    code, out, _ = reproduce("mpa/table-5", "--list")
    assert code == 0
    assert "nearkin train mpa/mpa_ap data.source=cars training.batch_size=64\n" in out
    assert "published: R@1 87.1, R@2 92.4" in out
    assert "cannot be run here: Cars196 is not here" in " ".join(out.split())
    _, out, _ = reproduce("ccp/table-2", "--data", "cub", "--rows", "c2", "--list", "--json")
    (row,) = json.loads(out)
    assert row["command"] == "nearkin mlrc ccp/c2"
    assert row["recipe"]["objective"]["neg_margin"] == 0.3841
    assert row["published"]["512-d mlrc-ensemble MAP@R"] == 26.47
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_rows_says_what_to_do_instead(reproduce):
    assert reproduce("ccp/figure-1")[:2] == (0, "ccp/figure-1: an illustration\n")
    _, out, _ = reproduce("vcpa/figure-10", "--json")
    assert "nearkin plot RUN --only pairs" in json.loads(out)["instead"]


def test_rows_without_data_are_skipped_with_the_reason_in_the_table(reproduce, tmp_path):
    code, out, err = reproduce("mpa/table-7", "-o", "out", "--format", "md")
    assert code == 3
    assert "no row could be run here" in err
    assert "| MPA, K=8 | skipped (1) | – |" in out
    assert "|  | published | 69.1 |" in out
    assert "skipped: CUB-200-2011 is not here" in out
    assert (tmp_path / "out" / "table-7.md").read_text(encoding="utf-8") == out


def test_a_table_is_run_kept_and_grows(reproduce, tmp_path, photos):
    options = ["mpa/table-7", "--data", photos, "-o", "out", *TINY]
    code, out, err = reproduce(*options, "--rows", "mpa-proxies_per_class-1")
    assert code == 0, err
    assert "Plan: 1 run for mpa/table-7, 0 of them finished already, into out\nTime: " in err
    assert len(err.splitlines()) == 2, "otherwise quiet when piped"
    assert "MPA, K=1" in out
    assert "K=4" not in out
    assert "Another backbone: small" in " ".join(out.split())
    assert "Other data than the paper's" in " ".join(out.split())
    code, out, err = reproduce(*options, "--rows", "mpa-proxies_per_class-4", "--format", "csv", "-v")
    assert code == 0, err
    records = list(csv.DictReader(io.StringIO(out)))
    assert [(each["row"], each["metric"]) for each in records if each["ours"]] == [
        ("mpa-proxies_per_class-1", "R@1"),
        ("mpa-proxies_per_class-1", "MAP@R"),
        ("mpa-proxies_per_class-4", "R@1"),
        ("mpa-proxies_per_class-4", "MAP@R"),
    ]
    _, _, err = reproduce(*options, "--rows", "mpa-proxies_per_class-4", "-v")
    assert "1 of 1 runs are finished already" in err
    for ending in (".md", ".csv", ".json", ".png"):
        assert (tmp_path / "out" / f"table-7{ending}").stat().st_size > 100


def test_a_row_that_fails_decides_the_exit_code(reproduce, photos):
    (photos / "kiwi" / "broken.png").write_text("not an image")
    code, out, err = reproduce("mpa/table-7", "--data", photos, *TINY, "--rows", "mpa-proxies_per_class-1")
    assert code == 3
    assert "1 of 1 runs did not finish" in err
    assert "broken.png" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ccp/tabel-6"], 2, "did you mean 'ccp/table-6'"),
        (["mpa/table-4", "mpa/table-5"], 2, "one table at a time"),
        (["mpa/table-4", "--rows", "mpa_pa"], 2, "did you mean 'mpa_ap'"),
        (["mpa/table-4", "training.epocs=3"], 2, "did you mean 'epochs'"),
        (["mpa/table-4", "--weights", "nowhere.pth"], 3, "'nowhere.pth', which is not a file"),
    ],
)
def test_mistakes_get_one_clear_line(reproduce, tmp_path, arguments, code, said):
    got, _, err = reproduce(*arguments)
    assert got == code, err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
