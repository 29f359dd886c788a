from __future__ import annotations

from collections import deque

import pytest
import torch

from nearkin.losses._ring import Ring


@pytest.mark.parametrize("batches", [[2, 2, 2, 2], [5], [7, 1], [3, 0, 4], [12, 12]])
def test_a_ring_holds_what_a_queue_of_its_size_holds(batches):
    ring, memory, labels = Ring(5), torch.full((5, 2), -1.0), torch.full((5,), -1)
    queue: deque[int] = deque(maxlen=5)
    number = 0
    for size in batches:
        new = torch.arange(number, number + size)
        number += size
        queue.extend(new.tolist())
        ring.put(new[:, None].repeat(1, 2).double(), memory, new.int(), labels)
        assert ring.fill == len(queue)
        assert sorted(labels[: ring.fill].tolist()) == sorted(queue)
        assert torch.equal(memory[: ring.fill, 0].long(), labels[: ring.fill])
    oldest_first = labels.roll(-ring.pointer)[-ring.fill :] if ring.fill == 5 else labels[: ring.fill]
    assert oldest_first.tolist() == list(queue)
