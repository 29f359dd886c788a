"""Images that occur more than once in a data set: the same file, or the same photo saved again or at another size.

Every image is shrunk to a grey thumbnail of 24 × 24 cells, and two show the same picture if their thumbnails correlate
by 0.97 or more. Of the pairs of CUB's 11,788 photos these are nine, each the same photo twice; the next pair correlates
by 0.92. Copies at JPEG quality 30, at a third of the size or 15 % brighter are found; crops are not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.cache import Images

MIN_CORRELATION = 0.97
MAX_IMAGES = 100_000
"""Larger sets are not searched: comparing every image with every other would take minutes."""
MAX_PAIRS = 500_000
"""The search ends once it has found this many pairs."""

_SIDE = 24
_BLOCK = 1024
_SEVERAL = -1


def find_duplicates(images: Images, parts: NDArray[np.int64]) -> tuple[list[list[int]], bool]:
    """Rows that show the same picture: identical thumbnails anywhere, similar ones only across different ``parts``.

    ``parts`` numbers what a picture should not be shared by, such as classes; photos of a burst within one may look
    nearly the same. Grouping is transitive. Returns the groups, each ascending, and whether the search was complete.

    >>> pixels = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), dtype=np.uint8)
    >>> pixels[3] = pixels[0] // 2
    >>> find_duplicates(pixels, np.array([0, 0, 1, 1]))
    ([[0, 3]], True)
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    thumbnails = np.empty((len(images), _SIDE * _SIDE), dtype=np.uint8)
    for row in range(len(images)):
        grey = Image.fromarray(np.ascontiguousarray(images[row])).convert("L")
        thumbnails[row] = np.asarray(grey.resize((_SIDE, _SIDE), Image.Resampling.BOX)).ravel()
    different, first, copy_of = np.unique(thumbnails, axis=0, return_index=True, return_inverse=True)
    copy_of = copy_of.ravel()
    part = parts[first]
    part[copy_of[parts != part[copy_of]]] = _SEVERAL
    # The correlation of two thumbnails is the product of these; that of a flat one with any other is 0.
    vectors = different - different.mean(axis=1, keepdims=True, dtype=np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    pairs, complete = [np.empty((2, 0), dtype=np.int64)], True
    for start in range(0, len(vectors), _BLOCK):
        block = slice(start, start + _BLOCK)
        apart = (part[block, None] != part[None, start:]) | (part[block, None] == _SEVERAL)
        one, other = np.nonzero(apart & (vectors[block] @ vectors[start:].T >= MIN_CORRELATION))
        pairs.append(start + np.stack([one, other])[:, one < other])
        if sum(part.shape[1] for part in pairs) > MAX_PAIRS:
            complete = start + _BLOCK >= len(vectors)
            break
    one, other = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(len(vectors), len(vectors)))
    group_of = connected_components(graph, directed=False)[1][copy_of]
    order = np.argsort(group_of, kind="stable")
    groups = [group.tolist() for group in np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)]
    return sorted(group for group in groups if len(group) > 1), complete
