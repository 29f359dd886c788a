"""Reproduce one row of a published table: Proxy-Anchor in table 4 of the MPA paper.

    python examples/one_table_row.py                        # on Glyphs: one epoch, nothing published to compare with
    python examples/one_table_row.py --data cub --weights bn_inception.safetensors   # the paper's own setting, on a GPU

Half a minute on one CPU core for the first. It is what `nearkin reproduce mpa/table-4 --rows proxy_anchor` does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nearkin
from nearkin.report.table import FORMATS
from nearkin.studies.papers import Settings


def main(arguments: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glyphs", help="cub, glyphs, or a folder of photos")
    parser.add_argument("--row", default="proxy_anchor", help="nearkin reproduce mpa/table-4 --list shows all")
    parser.add_argument("--backbone", help="another one than the paper's; glyphs has its own")
    parser.add_argument("--weights", help="file with the backbone's ImageNet weights")
    parser.add_argument("--output", type=Path, default=Path("runs/example-row"))
    parser.add_argument("changes", nargs="*", help="keys of the recipe; default on glyphs: training.epochs=1")
    given = parser.parse_args(arguments)
    changes = given.changes or (["training.epochs=1"] if given.data == "glyphs" else [])
    study = nearkin.reproduce(
        "mpa/table-4",
        data=[given.data],
        rows=[given.row],
        settings=Settings(backbone=given.backbone, weights=given.weights, overrides=tuple(changes)),
        folder=given.output,
    )
    print(FORMATS["md"](study.table()))
    print(f"The same as files, and the run: {given.output}")
    return dict(study.record())


if __name__ == "__main__":
    main()
