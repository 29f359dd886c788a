"""Build a search and serve it: index photos, ask from Python, ask the same server from another program.

    python examples/search_and_serve.py                                  # photos drawn on the fly
    python examples/search_and_serve.py --run RUN --photos PHOTOS --stay # your own, then open the address it prints

Twenty seconds on one CPU core. It is what `nearkin index` and `nearkin serve` do. Needs `pip install -e '.[serve]'`.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from queue import Queue

from drawn_photos import draw_photos

import nearkin
from nearkin.serving.app import serve
from nearkin.serving.settings import Settings


def trained_on(photos: Path, folder: Path, epochs: int) -> Path:
    """A small network, from scratch."""
    changes = [f"data.source={json.dumps(str(photos))}", f"training.epochs={epochs}", "data.image_size=48"]
    nearkin.run(nearkin.load_recipe("own_photos/small", changes), folder)
    return folder


def main(arguments: list[str] | None = None) -> list[str | None]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run folder or an exported file; default: a small one is trained")
    parser.add_argument("--photos", type=Path, help="one folder per kind; default: drawn ones")
    parser.add_argument("--output", type=Path, default=Path("runs/example-search"), help="new folder for all of it")
    parser.add_argument("--epochs", type=int, default=20, help="of the small one")
    parser.add_argument("--stay", action="store_true", help="serve until Ctrl-C")
    given = parser.parse_args(arguments)
    photos = given.photos or draw_photos(given.output / "photos")
    model = nearkin.load(given.run or trained_on(photos, given.output / "run", given.epochs))

    index = nearkin.Index.create(given.output / "photos.index", model)
    index.add(photos, labels="folder")
    query = sorted(photos.glob("*/*"))[0]
    hits = index.search(query, k=5)
    for hit in hits:
        sure = "" if hit.confidence is None else f"{hit.confidence:.0%} sure"  # too few labels tell nothing
        print(f"{hit.score:.2f}  {sure}  {hit.label}  {hit.path}")
    if given.stay:
        serve(index, Settings(port=8000), ready=print)

    # A server is a process of its own, `nearkin serve INDEX`; a thread does for an example.
    address: Queue[str] = Queue()
    threading.Thread(target=serve, args=(index, Settings(port=0)), kwargs={"ready": address.put}, daemon=True).start()
    client = nearkin.Client(address.get(timeout=60))
    here = hits[0].label
    others = client.search(query, k=3, where={"label": [label for label in _labels(index) if label != here]})
    print(f"Of another class than {here}: {', '.join(str(hit.label) for hit in others)}")
    added = client.add(query.read_bytes(), label="a new class")
    print(f"Added as item {added.id}; {client.status()['items']} items are served")
    return [hit.label for hit in client.search(query, k=5)]


def _labels(index: nearkin.Index) -> list[str]:
    return sorted({str(item.label) for item in index.items(index.ids())})


if __name__ == "__main__":
    main()
