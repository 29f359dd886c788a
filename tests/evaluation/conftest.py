from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearkin.evaluation.pairs import Cosine


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returned."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                leaf = leaf if leaf.layout == torch.strided else leaf.values()  # a sparse one holds these alone
                self.bytes = max(self.bytes, leaf.numel() * leaf.element_size())
        return out


@pytest.fixture
def largest_tensor():
    return LargestTensor()


@pytest.fixture
def hits_by_definition():
    """The slow reference: of each query, which places of its whole ranking are hits, by every pair's code."""

    def hits(queries, references, query_classes, reference_classes):
        metric = Cosine(queries, references)
        every = torch.arange(len(references))
        for q in range(len(queries)):
            codes = metric.codes(torch.full_like(every, q), every).numpy()
            order = np.lexsort([every.numpy(), codes])  # ties by index
            if queries is references:
                order = order[order != q]
            yield reference_classes.numpy()[order] == int(query_classes[q])

    return hits
