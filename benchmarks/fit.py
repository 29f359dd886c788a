"""How far runs with proxies have separated their training classes: similarities of images to own and other proxies.

    nearkin compare --data glyphs --rows proxy_anchor,proxy_isa -o runs/compare
    python benchmarks/fit.py runs/compare/*/seed-*

``own`` is the mean similarity to the proxy of the own class, ``others`` that to all other proxies, ``above`` the share
of the latter that are above −0.1: with Proxy-Anchor's margin these are the negatives that still push. At the checkpoint
that is reported, training images with the crop of an evaluation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from losses import setting
from nearkin.losses import ProxyLoss
from nearkin.report.opened_run import OpenedRun, open_runs
from nearkin.report.table import markdown_table

MARGIN = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of losses with proxies")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    lines = [fit(run) for run in open_runs(arguments.runs)]
    print(markdown_table([tuple(lines[0]), *([str(value) for value in line.values()] for line in lines)]))
    if arguments.json is not None:
        told = {"setting": setting("cpu"), "lines": lines}
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


def fit(run: OpenedRun) -> dict[str, object]:
    if not isinstance(run.objective, ProxyLoss):
        raise SystemExit(f"{run.folder.path} has no loss with proxies")
    labels = torch.from_numpy(run.protocol.training_labels())[:, None]
    similarities = run.objective.class_similarities(run.embed(run.protocol.train_rows)).detach()
    own = similarities.gather(1, labels)
    others = similarities[torch.ones_like(similarities, dtype=torch.bool).scatter_(1, labels, value=False)]
    path = run.folder.path
    return {
        "row": path.parent.name,
        "run": path.name,
        "own": round(own.mean().item(), 3),
        "others": round(others.mean().item(), 3),
        "above": round((others > -MARGIN).float().mean().item(), 4),
    }


if __name__ == "__main__":
    main()
