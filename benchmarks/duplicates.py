"""How well the perceptual hash of 'nearkin duplicates' tells the same picture from another, on a folder of images.

    python benchmarks/duplicates.py FOLDER
    python benchmarks/duplicates.py FOLDER --json results/duplicates.json # keep the figures

Some images are changed in several ways, made thumbnails and hashed; and all images are compared with each other.
Pairs of different files that count as the same are listed: look at them, they may be the same picture.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from nearkin.data.folder import list_images
from nearkin.data.image_inputs import ImageInputs
from nearkin.index.adding import thumbnail_of
from nearkin.index.fingerprint import LEAST_CORRELATION, MOST_BITS, are_alike, brightness, pairs_within, perceptual_hash


def again(image, quality):
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content)


def resized(image, share):
    return image.resize([max(1, round(share * side)) for side in image.size], Image.Resampling.LANCZOS)


def brighter(image, by):
    return ImageEnhance.Brightness(image).enhance(by)


def border_cut(image, share):
    x, y = (round(share * side) for side in image.size)
    return image.crop((x, y, image.width - x, image.height - y))


CHANGES = {
    "JPEG at 75": lambda image: again(image, 75),
    "JPEG at 30": lambda image: again(image, 30),
    "half as wide": lambda image: resized(image, 0.5),
    "a quarter as wide": lambda image: resized(image, 0.25),
    "10 % brighter": lambda image: brighter(image, 1.1),
    "25 % brighter": lambda image: brighter(image, 1.25),
    "25 % darker": lambda image: brighter(image, 0.75),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "half as wide, 15 % brighter, JPEG at 40": lambda image: again(brighter(resized(image, 0.5), 1.15), 40),
    "2 % cut off on every side": lambda image: border_cut(image, 0.02),
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
}


def seen(image):
    return brightness(thumbnail_of(ImageInputs([image], shorter_side=256)[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--changed", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    files = list_images(options.folder)
    some = set(np.random.default_rng(0).permutation(len(files))[: options.changed].tolist())
    distances, same = ({name: [] for name in CHANGES} for _ in range(2))
    hashes, pictures, begun = [], [], time.process_time()
    for place, file in enumerate(files):
        pictures.append(seen(file))
        hashes.append(perceptual_hash(pictures[-1]))
        if place in some and hashes[-1] is not None:
            with Image.open(file) as opened:
                image = ImageOps.exif_transpose(opened).convert("RGB")
            for name, change in CHANGES.items():
                picture = seen(change(image))
                found = perceptual_hash(picture)
                distances[name].append(64 if found is None else (hashes[-1] ^ found).bit_count())
                same[name].append(distances[name][-1] <= MOST_BITS and are_alike(pictures[-1], picture))
    seconds = time.process_time() - begun
    kept = [place for place, each in enumerate(hashes) if each is not None]
    different, of = np.unique(np.array([hashes[place] for place in kept], dtype=np.uint64), return_inverse=True)
    begun = time.process_time()
    near = {tuple(pair) for part in pairs_within(different, 16) for pair in part.tolist()}
    search = time.process_time() - begun
    first = [kept[int(np.flatnonzero(of == place)[0])] for place in range(len(different))]
    alike = {pair for pair in near if are_alike(*(pictures[first[place]] for place in pair))}
    counts = np.bincount(of)
    bits = {pair: (int(different[pair[0]]) ^ int(different[pair[1]])).bit_count() for pair in near}
    told = {
        "images": len(files),
        "blank": len(files) - len(kept),
        "pairs": len(kept) * (len(kept) - 1) // 2,
        "pairs with one hash": int((counts * (counts - 1) // 2).sum()),
        "pairs within, all and those alike": {
            most: [sum(each <= most and pair in those for pair, each in bits.items()) for those in (near, alike)]
            for most in (2, 4, 6, 8, 10, 12, 16)
        },
        "changed": {
            name: {"the same": float(np.mean(same[name])), "median": float(np.median(found))}
            for name, found in distances.items()
        },
        "seconds to read, change and hash": seconds,
        "seconds to find pairs within 16 bits": search,
    }
    print(f"{told['images']:,} images, {told['blank']} blank; {MOST_BITS} bits, correlation {LEAST_CORRELATION}")
    print(f"{told['pairs']:,} pairs of different files, {told['pairs with one hash']} of them with the same hash")
    for most, (every, those) in told["pairs within, all and those alike"].items():
        print(f"  within {most} bits: {every}, of these alike: {those}")
    for pair in sorted(alike, key=bits.__getitem__)[:40]:
        print(f"  {bits[pair]} bits: {' and '.join(files[first[place]].name for place in pair)}")
    for name, found in told["changed"].items():
        print(f"{name:42} the same: {found['the same']:6.1%}  median {found['median']:g} bits")
    print(f"{seconds:.0f} s of processor to read, change and hash, {search:.2f} s to find all pairs within 16 bits")
    if options.json:
        versions = {"pillow": Image.__version__, "numpy": np.__version__, "python": platform.python_version()}
        told = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions, **told}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
