"""What ISA takes wrongly labelled training images for: easy, informative, or outliers as it means to.

    nearkin compare --data glyphs --rows proxy_isa protocol.label_noise=0.2 -o runs/noise
    python benchmarks/wrong_labels.py runs/noise/proxy_isa/seed-*

For runs with ``protocol.label_noise``, whose wrong labels are known. Shares are of the images with right and with wrong
labels, by the similarity to the proxy of the class that the label names, at the checkpoint that is reported.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from losses import setting
from nearkin.losses import InformativeSampleWeights
from nearkin.report.opened_run import OpenedRun, open_runs
from nearkin.report.table import markdown_table

JUDGEMENTS = ("easy", "informative", "outlier")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders with ISA's weights and protocol.label_noise")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    lines = [line for run in open_runs(arguments.runs) for line in judged(run)]
    heads = ("run", "labels", "images", "similarity", *JUDGEMENTS)
    print(markdown_table([heads, *([str(line[head]) for head in heads] for line in lines)]))
    if arguments.json is not None:
        told = {"setting": setting("cpu"), "lines": lines}
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


def judged(run: OpenedRun) -> list[dict[str, object]]:
    objective, given = run.objective, torch.from_numpy(run.protocol.training_labels())
    weighting = getattr(objective, "weighting", None)
    if not isinstance(weighting, InformativeSampleWeights) or not run.protocol.replaced_labels:
        raise SystemExit(f"{run.folder.path} is no run with ISA's weights and protocol.label_noise")
    classes = torch.from_numpy(run.training_classes)
    true = torch.from_numpy(run.data.table.labels[run.protocol.train_rows])
    similarities = objective.class_similarities(run.embed(run.protocol.train_rows))
    own = similarities.gather(1, given[:, None]).squeeze(1)
    judged = dict(zip(JUDGEMENTS, weighting.judgement(similarities, given), strict=True))
    lines = []
    for labels, mine in (("right", classes[given] == true), ("wrong", classes[given] != true)):
        line: dict[str, object] = {"run": run.folder.path.name, "labels": labels, "images": int(mine.sum())}
        line["similarity"] = round(own[mine].mean().item(), 3)
        lines.append(line | {name: round(each[mine].float().mean().item(), 3) for name, each in judged.items()})
    return lines


if __name__ == "__main__":
    main()
