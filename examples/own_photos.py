"""Fine-tune on your own photos: train and score on kinds it has never seen, then the same on every kind, then embed.

    python examples/own_photos.py                           # photos drawn on the fly
    python examples/own_photos.py --photos PHOTOS --epochs 15   # a folder with one folder per kind

About a minute on one CPU core for the drawn ones; 1,200 photos take half a minute an epoch on two. It is what
`nearkin train --data PHOTOS`, `nearkin train --final RUN` and `nearkin embed` do.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from drawn_photos import draw_photos

import nearkin
from nearkin.runs.folder import own_photos_name
from nearkin.training.state import Observer


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="one folder per kind; default: drawn ones")
    parser.add_argument("--output", type=Path, default=Path("runs/example-photos"), help="new folder for all of it")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("changes", nargs="*", help="other keys of the recipe, such as training.batch_size=32")
    given = parser.parse_args(arguments)
    photos = given.photos or draw_photos(given.output / "photos")
    # With the extra 'lite' a network that knows ImageNet, which few photos need; without it a small one from scratch.
    recipe = nearkin.load_recipe(
        own_photos_name(),
        [f"data.source={json.dumps(str(photos))}", f"training.epochs={given.epochs}", *given.changes],
    )
    scores = nearkin.run(recipe, given.output / "run")
    for name in ("R@1", "MAP@R"):
        print(f"{name} on unseen classes: {scores.untrained[name]:.1%} untrained, {scores.test[name]:.1%} trained")

    # The score is known; the model to use may see every class.
    nearkin.train_final(given.output / "run", Observer(), output=given.output / "final")
    model = nearkin.load(given.output / "final")
    first = sorted(photos.glob("*/*"))[:5]
    print(f"{len(first)} photos as vectors {model.encode(first).shape}; the model: {given.output / 'final'}")
    return dict(scores.test)


if __name__ == "__main__":
    main()
