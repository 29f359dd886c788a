"""Whether what an index says of its own answers holds: on new photos of its classes, and on classes it never had.

    python benchmarks/confidence.py photos.index --known NEW --unknown UNKNOWN
    python benchmarks/confidence.py photos.index --known NEW --unknown UNKNOWN --json confidence.json

NEW holds photos of the index's classes, one folder per class with the same names; UNKNOWN holds photos of other
classes. None of them may have been trained on or be in the index. Printed are

* labels: how many known photos got the right label, a wrong one or none, and how many unknown ones were refused;
* the confidence of labels and of the ten nearest hits: expected calibration error (ten bins of equally many answers),
  Brier score, and the Brier score of a constant, the share that is right. A label is right only for a known photo;
* how many unknown photos a threshold refuses that refuses a tenth of the known ones, by confidence and by the cosine;
* what other ways to label make of the same embeddings: the nearest photo, ten neighbours, the nearest class mean, and
  scikit-learn's k nearest neighbours and logistic regression, as most people would use them.

Known and unknown photos count as they are; --balanced weighs them alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nearkin.data.folder import list_images
from nearkin.evaluation.neighbours import nearest
from nearkin.index import Index

VOTERS, BINS = 10, 10
SURE = 0.9


def embed(index: Index, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the folder's photos, and the name of the class folder of each, as the index names its labels."""
    files = list_images(folder)
    labels = [file.parent.relative_to(folder).as_posix() for file in files]
    return index.model.encode([str(file) for file in files]), np.array(labels)


def calibration_error(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray) -> float:
    """Mean distance between confidence and the share that is right, over bins of equally many answers."""
    parts = np.array_split(np.argsort(confidence, kind="stable"), BINS)
    gaps = [abs(np.average(confidence[p] - right[p], weights=weights[p])) * weights[p].sum() for p in parts if len(p)]
    return float(sum(gaps) / weights.sum())


def reliability(confidence: np.ndarray, right: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    share = np.average(right, weights=weights)
    return {
        "ece": calibration_error(confidence, right, weights),
        "brier": float(np.average((confidence - right) ** 2, weights=weights)),
        "brier_of_constant": float(share * (1 - share)),
        "answers": len(right),
    }


def refused_unknown(known: np.ndarray, unknown: np.ndarray) -> float:
    """The share of unknown photos below the threshold that a tenth of the known ones are below."""
    return float((unknown < np.quantile(known, 0.1)).mean())


def other_labels(index: Index, queries: np.ndarray) -> dict[str, np.ndarray]:
    """What the same embeddings are labelled by neighbours, by class means, and by scikit-learn."""
    ids, labels = index.labels()
    gallery = index.vectors(ids)
    classes, numbers = np.unique(labels, return_inverse=True)
    rows, _ = nearest(queries, gallery, k=min(VOTERS, len(gallery)), distance=index.model.distance)
    # Of labels with equally many votes the one that is nearest wins.
    voted = [max(dict.fromkeys(labels[row]), key=list(labels[row]).count) for row in rows]
    means = np.stack([gallery[numbers == i].mean(axis=0) for i in range(len(classes))])
    by_mean, _ = nearest(queries, means, k=1, distance=index.model.distance)
    learners = {
        f"scikit-learn, {VOTERS} neighbours": KNeighborsClassifier(VOTERS, weights="distance"),
        "scikit-learn, logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    }
    return {
        "nearest photo": labels[rows[:, 0]],
        f"{VOTERS} neighbours": np.array(voted),
        "class mean": classes[by_mean[:, 0]],
        **{name: learner.fit(gallery, labels).predict(queries) for name, learner in learners.items()},
    }


def measure(index: Index, known: Path, unknown: Path, balanced: bool) -> dict[str, object]:
    vectors, labels = embed(index, known)
    strangers, _ = embed(index, unknown)
    missing = sorted(set(labels) - set(index.labels()[1]))
    if missing:
        raise SystemExit(f"{known} has classes that the index has not: {', '.join(missing[:5])}")
    queries = np.concatenate([vectors, strangers]).astype(np.float64)
    is_known = np.arange(len(queries)) < len(vectors)
    truth = np.concatenate([labels, np.full(len(strangers), "")])
    weights = np.where(is_known, 1 / is_known.sum(), 1 / (~is_known).sum()) if balanced else np.ones(len(queries))
    answers = index.classify(queries)
    surest = index.classify(queries, min_confidence=0.0)
    hits = index.search(queries, VOTERS)
    given = np.array([answer.label or "" for answer in answers])
    result: dict[str, object] = {
        "known photos": len(vectors),
        "unknown photos": len(strangers),
        "right": float((given == truth)[is_known].mean()),
        "wrong": float(((given != truth) & (given != ""))[is_known].mean()),
        "none": float((given == "")[is_known].mean()),
        "unknown refused": float((given == "")[~is_known].mean()),
        "accuracy without refusing": float(np.mean([a.label for a in surest[: len(vectors)]] == labels)),
        **{
            f"accuracy of {name}": float((found == labels).mean())
            for name, found in other_labels(index, vectors.astype(np.float64)).items()
        },
    }
    cosines = np.array([found[0].score for found in hits])
    result["unknown refused, cosine"] = refused_unknown(cosines[is_known], cosines[~is_known])
    if surest[0].confidence is None:
        result["confidence"] = "none"
        return result
    confidence = np.array([answer.confidence for answer in surest])
    right = np.array([answer.label for answer in surest]) == truth
    result |= {
        f"unknown, at least {SURE:.0%} sure": float((confidence[~is_known] >= SURE).mean()),
        "unknown refused, confidence": refused_unknown(confidence[is_known], confidence[~is_known]),
        "labels": reliability(confidence, right.astype(float), weights),
        "hits": reliability(
            np.array([hit.confidence for found in hits for hit in found]),
            np.array([hit.label == true for found, true in zip(hits, truth, strict=True) for hit in found], float),
            np.repeat(weights, [len(found) for found in hits]),
        ),
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--known", type=Path, required=True, help="new photos of the index's classes, by class folder")
    parser.add_argument("--unknown", type=Path, required=True, help="photos of classes that the index does not have")
    parser.add_argument("--balanced", action="store_true", help="known and unknown photos together weigh the same")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    result = measure(Index.open(arguments.index), arguments.known, arguments.unknown, arguments.balanced)
    for name, value in result.items():
        if isinstance(value, dict):
            shown = (
                f"ECE {value['ece']:.3f}, Brier {value['brier']:.3f}, of a constant {value['brier_of_constant']:.3f}"
            )
            print(f"{name + ', confidence':34} {shown}, {value['answers']:,} answers")
        else:
            print(f"{name:34} {f'{value:.1%}' if isinstance(value, float) else value}")
    if arguments.json:
        setting = {"command": " ".join(sys.argv), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        arguments.json.write_text(json.dumps(setting | result, indent=2) + "\n")


if __name__ == "__main__":
    main()
