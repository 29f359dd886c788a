"""Is this tree fit to be released? ``make release-check``.

Builds wheel and sdist, looks into both, installs the wheel into an empty environment and goes through the quick start
there: in an empty folder, without the repository. Nothing is published.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
HEADING = re.compile(r"^## \[([^]]+)\](?: - (\S+))?$", re.M)

# Photos as a newcomer has them: a folder for each kind, names with spaces, another background on each.
DRAW_PHOTOS = """
import random
from pathlib import Path
from PIL import Image, ImageDraw

SHAPES = {
    "disc": lambda draw, box: draw.ellipse(box, fill=INK),
    "square": lambda draw, box: draw.rectangle(box, fill=INK),
    "ring": lambda draw, box: draw.ellipse(box, outline=INK, width=9),
    "frame": lambda draw, box: draw.rectangle(box, outline=INK, width=9),
    "stroke": lambda draw, box: draw.line(box, fill=INK, width=9),
    "half moon": lambda draw, box: draw.pieslice(box, 90, 270, fill=INK),
}
rng = random.Random(0)
for kind, shape in SHAPES.items():
    folder = Path("photos") / kind
    folder.mkdir(parents=True)
    for number in range(8):
        INK = tuple(rng.randrange(130) for _ in range(3))
        image = Image.new("RGB", (96, 80), tuple(rng.randrange(150, 256) for _ in range(3)))
        left, top, side = rng.randrange(4, 30), rng.randrange(4, 20), rng.randrange(36, 56)
        shape(ImageDraw.Draw(image), (left, top, left + side, top + side))
        image.save(folder / f"photo {number}.jpg", quality=92)
"""


def fail(why: str) -> NoReturn:
    sys.exit(f"release-check: {why}")


def ran(*words: str | Path, cwd: Path = ROOT, expect: str = "", code: int = 0) -> str:
    """What a command printed. It must end with ``code`` and print ``expect``."""
    shown = (Path(word).name if Path(word).is_absolute() else str(word) for word in words)
    print("$", *("<script>" if "\n" in word else word for word in shown), flush=True)
    # Nothing of the caller's: neither this tree on the path nor what another run has cached.
    hidden = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NEARKIN"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**hidden, "NEARKIN_CACHE": str(cwd / "cache"), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode != code or expect not in said:
        print(said[-4000:])
        fail(f"{Path(words[0]).name} ended with {done.returncode}, not {code}, or did not print {expect!r}")
    return said


def environment(folder: Path, *packages: str) -> Path:
    """The ``bin`` of a fresh environment."""
    if not folder.exists():
        venv.create(folder, with_pip=True)
    binaries = folder / ("Scripts" if os.name == "nt" else "bin")
    ran(binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return binaries


def wheel_contents(wheel: Path) -> dict[str, bytes]:
    """Every file in a wheel but the list of their hashes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def shipped() -> dict[str, bytes]:
    """What the wheel must hold of this tree: code, ``py.typed``, the gallery's pages and scripts, the recipes."""
    files = {}
    for folder, inside in ((ROOT / "src" / "nearkin", "nearkin"), (ROOT / "recipes", "nearkin/recipes")):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{inside}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    for needed in ("nearkin/py.typed", "nearkin/serving/web/index.html", "nearkin/recipes/glyphs/demo.yaml"):
        if needed not in files:
            fail(f"{needed} is not in this tree")
    return files


def changelog_entry(version: str, changelog: str) -> str | None:
    """The heading that a version's changes stand under, or None. A release needs a date; what comes before it does not.

    >>> changelog_entry("0.2.0.dev3+gabc", "## [Unreleased]")
    'Unreleased'
    >>> changelog_entry("0.2.0.dev3", "## [0.2.0] - unreleased")
    '0.2.0'
    >>> changelog_entry("0.2.0", "## [0.2.0] - unreleased"), changelog_entry("0.2.0", "## [0.2.0] - 2026-12-01")
    (None, '0.2.0')
    """
    dates = dict(HEADING.findall(changelog))
    number = re.split(r"\.?(?:dev|a|b|rc|post)\d|\+", version)[0]
    if ".dev" in version:
        return number if number in dates else "Unreleased" if "Unreleased" in dates else None
    return number if re.fullmatch(r"\d{4}-\d\d-\d\d", dates.get(number, "")) else None


def built(work: Path) -> Path:
    """The wheel, after all that can be said of it and of the sdist without installing it."""
    tools = environment(work / "tools", "build", "twine")
    dist = work / "dist"
    ran(tools / "python", "-m", "build", "--outdir", dist, "--sdist", "--wheel", ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    ran(tools / "python", "-m", "twine", "check", "--strict", wheel, sdist, expect="PASSED")

    version = wheel.name.split("-")[1]
    if changelog_entry(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) is None:
        fail(f"CHANGELOG.md has no section for {version}: ## [{version.split('.dev')[0]}] - <date>")

    held, wanted = wheel_contents(wheel), shipped()
    if missing := sorted(name for name, content in wanted.items() if held.get(name) != content):
        fail(f"not in the wheel, or not as in this tree: {', '.join(missing[:5])}")
    if strangers := sorted(name for name in held if name not in wanted and ".dist-info/" not in name):
        fail(f"in the wheel and not in this tree: {', '.join(strangers[:5])}")

    with tarfile.open(sdist) as archive:
        archive.extractall(work / "sdist", filter="data")
    (unpacked,) = (work / "sdist").iterdir()
    ran(tools / "python", "-m", "build", "--outdir", work / "again", "--wheel", unpacked, cwd=unpacked)
    (again,) = (work / "again").glob("*.whl")
    if again.name != wheel.name or wheel_contents(again) != held:
        fail(f"the sdist builds another wheel: {again.name}")
    print(f"{wheel.name}: {len(held)} files, {wheel.stat().st_size / 1e6:.1f} MB; the sdist builds the same")
    return wheel


def quick_start(wheel: Path, work: Path, epochs: int) -> None:
    """From drawn photos to hits, an exported file and the gallery, with nothing but the wheel."""
    here = work / "empty"
    here.mkdir()
    binaries = environment(work / "environment", str(wheel), "--constraint", str(CONSTRAINTS))
    nearkin, python = binaries / "nearkin", binaries / "python"
    where = ran(python, "-c", "import nearkin; print(nearkin.__file__)", cwd=here)
    if str(ROOT) in where or "site-packages" not in where:
        fail(f"nearkin was imported from {where}")
    ran(nearkin, "--version", cwd=here, expect=wheel.name.split("-")[1])
    ran(nearkin, "--help", cwd=here, expect="train")
    ran(nearkin, "list", "recipes", cwd=here, expect="glyphs/demo")
    ran(nearkin, "list", "losses", cwd=here, expect="proxy_anchor")
    little = ("training.epochs=1", "protocol.train_share=0.1")
    ran(nearkin, "train", "glyphs/demo", "-o", "runs/demo", *little, cwd=here, expect="R@1")
    ran(python, "-c", DRAW_PHOTOS, cwd=here)
    ran(nearkin, "train", "--data", "photos", "-o", "runs/photos", f"training.epochs={epochs}", cwd=here, expect="R@1")
    ran(nearkin, "index", "runs/photos", "photos", "-o", "shapes.index", cwd=here, expect="48")
    ran(nearkin, "search", "shapes.index", "photos/disc/photo 0.jpg", cwd=here, expect="photos/disc/photo 0.jpg")
    ran(nearkin, "search", "shapes.index", "photos/disk.jpg", cwd=here, expect="photos/disk.jpg", code=3)
    ran(nearkin, "export", "runs/photos", "-o", "photos.onnx", cwd=here, expect="onnx", code=4)  # says which extra

    extras = f"nearkin[onnx,serve] @ {wheel.as_uri()}"
    environment(work / "environment", extras, "--constraint", str(CONSTRAINTS))
    ran(nearkin, "export", "runs/photos", "-o", "photos.onnx", cwd=here, expect="photos.onnx")
    ran(nearkin, "index", "photos.onnx", "photos", "-o", "onnx.index", cwd=here, expect="48")
    pages = served(nearkin, "shapes.index", here)
    if b"<title>" not in pages["/"] or not all(pages.values()):
        fail(f"the gallery is not what it should be: { ({path: len(page) for path, page in pages.items()}) }")


def served(nearkin: Path, index: str, here: Path) -> dict[str, bytes]:
    """What ``nearkin serve`` answers for the gallery's page, a script and a style of it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print("$ nearkin serve", index, flush=True)
    server = subprocess.Popen([nearkin, "serve", index, "--port", str(port)], cwd=here, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                return {
                    path: urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60).read()
                    for path in ("/", "/static/app.js", "/static/style.css")
                }
            except urllib.error.URLError:
                if server.poll() is not None:
                    break
                time.sleep(0.5)
        fail(f"nearkin serve {index} does not answer")
    finally:
        server.terminate()
        server.wait(60)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="of the run on drawn photos")
    parser.add_argument("--dist", type=Path, help="keep wheel and sdist in this folder")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nearkin-release-") as folder:
        work = Path(folder)
        wheel = built(work)
        quick_start(wheel, work, asked.epochs)
        if asked.dist:
            shutil.copytree(work / "dist", asked.dist, dirs_exist_ok=True)
    print("release-check: all is well")


if __name__ == "__main__":
    main()
