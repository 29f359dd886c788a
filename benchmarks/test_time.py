"""What can be done with trained encoders without training: the scores of each switch beside the plain ones.

    python benchmarks/test_time.py --runs runs/a runs/b runs/c            # runs of one recipe with several seeds
    python benchmarks/test_time.py --npz a.npz b.npz --json out.json      # embeddings: test, test_labels

Shown are the mean over the runs, the mean difference to the plain score and its range over the runs. The settings were
fixed after a look at 42 of them on validation classes of Glyphs, not by test scores
(results/2026-11-16-test-time-glyphs-validation-sweep.txt).
Re-ranking looks at all test images at once (transductive), and its scores compare with no others. The row "--with" is
all runs as one, next to the mean of the single ones. Mirror images need runs, as embeddings in a file are what they
are. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import nearkin
from nearkin.evaluation.reranking import Rerank
from nearkin.evaluation.retrieval import concatenate_embeddings, measure
from nearkin.runs.data import open_run_data
from nearkin.runs.trained_run import load_run

SCORES = ("R@1", "R@8", "MAP@R")


@dataclass(frozen=True)
class Embedded:
    """Embeddings of a run's test images."""

    name: str
    test: NDArray[np.float32]
    labels: NDArray[np.int64]


def of_run(path: str, flip: bool, device: str | None) -> Embedded:
    run = load_run(path, device=device, flip=flip or None)
    data = open_run_data(run.folder, run.recipe)
    assert data.protocol.test is not None, f"{path} has no test classes"
    assert data.protocol.test.gallery is None, f"{path} is tested with a gallery, which this script does not know"
    rows = data.protocol.test.query
    return Embedded(path, run.embed(data.images.images, rows).cpu().numpy(), data.images.table.labels[rows])


def of_file(path: str) -> Embedded:
    with np.load(path, allow_pickle=False) as held:
        return Embedded(Path(path).stem, held["test"].astype(np.float32), held["test_labels"].astype(np.int64))


def reranked(k: int) -> Callable[[Embedded], dict[str, float]]:
    return lambda each: measure(SCORES, each.test, each.labels, rerank=Rerank(k1=k))


def plain(each: Embedded) -> dict[str, float]:
    return measure(SCORES, each.test, each.labels)


def concatenated(several: Sequence[Embedded]) -> Embedded:
    test = concatenate_embeddings([torch.from_numpy(each.test) for each in several]).numpy()
    return Embedded("concatenated", test, several[0].labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=[], help="run folders, of one recipe with several seeds")
    parser.add_argument("--npz", nargs="+", default=[], help="files with test and test_labels")
    parser.add_argument("--device", help="auto, cpu or cuda; default auto")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    if bool(arguments.runs) == bool(arguments.npz):
        parser.error("give --runs or --npz")
    several = [of_run(path, False, arguments.device) for path in arguments.runs] or list(map(of_file, arguments.npz))
    found: dict[str, list[dict[str, float]]] = {"plain": [plain(each) for each in several]}
    seconds: dict[str, float] = {}
    if arguments.runs:
        found["--flip"] = [plain(of_run(path, True, arguments.device)) for path in arguments.runs]
    for k in (5, 10, 20):
        began, name = time.process_time(), f"--rerank {k} (transductive)"
        found[name] = [reranked(k)(each) for each in several]
        seconds[name] = (time.process_time() - began) / len(several)
    same = len({each.labels.tobytes() for each in several}) == 1
    if len(several) > 1 and same:
        found[f"--with: {len(several)} as one"] = [plain(concatenated(several))]
    setting = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "nearkin": nearkin.__version__,
        "embeddings": [each.name for each in several],
        "images": len(several[0].test),
        "dim": several[0].test.shape[1],
    }
    print("; ".join(f"{key} {value}" for key, value in setting.items()))
    print(f"\n{'score (%)':36}" + "".join(f"{name:>8}{'difference (range)':>26}" for name in SCORES))
    results = []
    for name, scores in found.items():
        cells = []
        for score in SCORES:
            base, own = ([100 * each[score] for each in part] for part in (found["plain"], scores))
            mean = statistics.mean(own)
            cell = ""
            if name != "plain" and len(own) == len(base):
                moved = [after - before for before, after in zip(base, own, strict=True)]
                cell = f"{statistics.mean(moved):+.1f} ({min(moved):+.1f} to {max(moved):+.1f})"
            elif name != "plain":
                cell = f"{mean - statistics.mean(base):+.1f} to the mean"
            cells.append(f"{mean:8.1f}{cell:>26}")
        print(f"{name:36}" + "".join(cells))
        results.append({"setting": name, "scores": scores, "cpu_seconds_each": seconds.get(name)})
    if arguments.json:
        arguments.json.write_text(json.dumps({**setting, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
