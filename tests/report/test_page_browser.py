"""The report in a real browser: headless Chromium runs its script and shows what became of the page."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape

import pytest

from nearkin.report import page
from nearkin.report.opened_run import ViewOptions
from nearkin.report.page import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PERSON = """
(() => {
  const root = document.documentElement;
  const table = document.querySelector("table.sortable");
  const column = (index) => [...table.tBodies[0].rows].map((row) => row.cells[index].textContent);
  table.tHead.rows[0].cells[2].querySelector("button").click();
  root.dataset.upwards = column(2).join(" ");
  table.tHead.rows[0].cells[2].querySelector("button").click();
  root.dataset.downwards = column(2).join(" ");
  root.dataset.overflow = root.scrollWidth - root.clientWidth;
  addEventListener("load", () => {
    root.dataset.loaded = [...document.images].every((image) => image.complete && image.naturalWidth > 0);
  });
})();
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def opened(file, folder, *options):
    """The page's HTML once its script has run, and the attributes that it left at the root."""
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder}", *options, "--virtual-time-budget=4000", "--dump-dom"]
    text = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    root = re.search(r"<html([^>]*)>", text)[1]
    return text, {name: unescape(value) for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', root)}


@pytest.fixture(scope="module")
def report(four_runs, tmp_path_factory):
    """A report whose script also does what a person would do."""
    asset = page._asset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_asset", lambda name: asset(name) + (PERSON if name == "page.js" else ""))
        patch.setattr(page, "plot_names", lambda: ["curves", "worst"])
        file = tmp_path_factory.mktemp("browser") / "report.html"
        return write_report(four_runs, file, view=ViewOptions(device="cpu", classes=4))[0]


@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_a_person_can_sort(report, tmp_path, width):
    text, root = opened(report, tmp_path / "profile", f"--window-size={width},900")
    assert root["errors"] == ""
    assert "broken" not in root  # what a class named after a script would have left
    assert root["ready"] == "true"
    assert "NaN" not in re.sub(r"base64,[\w+/=]*", "", text)
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    upwards = [float(value) for value in root["upwards"].split()]
    assert upwards == sorted(upwards)
    assert [float(value) for value in root["downwards"].split()] == sorted(upwards, reverse=True)
    assert root["loaded"] == "true"
    assert root["overflow"] == "0"
