from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning import losses as peer

from nearkin.losses import Contrastive, CrossBatchMemory, Margin, MultiSimilarity, Triplet


def batches(count: int, rows: int = 6, dim: int = 4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(rows, dim, generator=generator, dtype=dtype), torch.arange(rows) // 2


@pytest.mark.parametrize("pair_loss", [Contrastive(neg_margin=1.3), Triplet(), Margin(), MultiSimilarity()])
@pytest.mark.parametrize("size", [4, 15, 100])
def test_equals_a_list_of_past_embeddings(pair_loss, size):
    loss = CrossBatchMemory(pair_loss, size=size, warmup_steps=0)
    past, past_labels = [], []
    for x, y in batches(6):
        x.requires_grad_()
        expected = pair_loss(x, y)
        if past:
            expected = expected + pair_loss(x, y, torch.stack(past), torch.stack(past_labels))
        value = loss(x, y)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            torch.autograd.grad(value, x), torch.autograd.grad(expected, x), rtol=1e-9, atol=1e-9
        )
        past = [*past, *x.detach()][-size:]
        past_labels = [*past_labels, *y][-size:]
        assert loss.memory.fill == len(past)


def test_by_hand():
    # e1, e2 of one class are √2 apart: √2 within the batch. Against a memory of e1 and −e1 of that class: d(e1, e1) = 0
    # is a zero term, d(e1, −e1) = 2, d(e2, ±e1) = √2: mean of the three others (2 + 2√2)/3.
    loss = CrossBatchMemory(Contrastive(), size=2, warmup_steps=0)
    y = torch.tensor([0, 0])
    loss(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), y)
    r = 2**0.5
    assert loss(torch.eye(2), y).item() == pytest.approx(r + (2 + 2 * r) / 3, abs=1e-6)


def test_during_the_warm_up_it_is_the_plain_loss_and_stores_nothing():
    plain = Contrastive(neg_margin=1.3)
    loss = CrossBatchMemory(plain, size=10, warmup_steps=2)
    given = list(batches(4))
    for x, y in given[:2]:
        assert loss(x, y) == plain(x, y)
        assert loss.memory.fill == 0
    # The third batch is the first to be stored, the fourth the first to meet a memory.
    assert loss(*given[2]) == plain(*given[2])
    assert loss.memory.fill == 6
    expected = plain(*given[3]) + plain(*given[3], *given[2])
    torch.testing.assert_close(loss(*given[3]), expected)


def test_the_memory_term_alone_for_a_method_with_its_own_batch_term():
    plain = Contrastive(neg_margin=1.3)
    whole, memory_only = (CrossBatchMemory(plain, size=10, warmup_steps=1) for _ in range(2))
    for x, y in batches(4):
        torch.testing.assert_close(whole(x, y), plain(x, y) + memory_only.memory_loss(x, y), rtol=0, atol=0)
        assert (memory_only.steps, memory_only.memory.fill) == (whole.steps, whole.memory.fill)
    assert torch.equal(whole.memory.embeddings, memory_only.memory.embeddings)
    assert memory_only.eval().memory_loss(x, y) > 0
    assert memory_only.steps == 4


def test_evaluation_neither_stores_nor_counts():
    loss = CrossBatchMemory(Contrastive(neg_margin=1.3), size=10, warmup_steps=0)
    first, second = batches(2)
    loss(*first)
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    assert loss(*second) == loss(*second)
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_with_a_full_memory_it_adds_what_the_peer_computes():
    # The peer's wrapper has the memory term only: it leaves the loss within the batch to the caller. It also stores
    # the batch before comparing; with an enqueue mask of zeros it compares without storing, as here.
    loss = CrossBatchMemory(Contrastive(neg_margin=1.3), size=12, warmup_steps=0)
    theirs = peer.CrossBatchMemory(peer.ContrastiveLoss(neg_margin=1.3), embedding_size=4, memory_size=12)
    given = list(batches(3))
    for x, y in given[:2]:
        loss(x, y)
        theirs(x, y)
    x, y = given[2]
    memory_term = theirs(x, y, enqueue_mask=torch.zeros(6, dtype=torch.bool))
    torch.testing.assert_close(loss(x, y), loss.pair_loss(x, y) + memory_term, rtol=1e-6, atol=1e-7)


def test_differs_from_the_peers_ordinary_call_which_averages_batch_and_memory_together():
    # There the batch is part of the memory, so its pairs and those with the past share one mean. Wang et al. (their
    # algorithm 1) add the two losses. The peer's value is ours with past and batch as references; the self-pairs among
    # them are zero terms.
    loss = CrossBatchMemory(Contrastive(neg_margin=1.3), size=18, warmup_steps=0)
    theirs = peer.CrossBatchMemory(peer.ContrastiveLoss(neg_margin=1.3), embedding_size=4, memory_size=18)
    first, (x, y) = batches(2)
    loss(*first)
    theirs(*first)
    ours, together = loss(x, y), theirs(x, y)
    both = loss.pair_loss(x, y, torch.cat([first[0], x]), torch.cat([first[1], y]))
    torch.testing.assert_close(together, both, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours, loss.pair_loss(x, y) + loss.pair_loss(x, y, *first))
    assert not torch.isclose(ours, together, rtol=0.1)


def test_a_new_instance_resumes_before_its_first_call():
    given = list(batches(9))
    loss = CrossBatchMemory(Margin(), size=20, warmup_steps=2)
    for x, y in given[:6]:
        loss(x, y)
    resumed = CrossBatchMemory(Margin(), size=20, warmup_steps=2)
    resumed.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert (
        (resumed.memory._next, resumed.memory.fill, resumed.steps)
        == (loss.memory._next, loss.memory.fill, loss.steps)
        == (4, 20, 6)
    )
    for x, y in given[6:]:
        assert torch.equal(resumed(x, y), loss(x, y))


def test_state_loads_without_unpickling_objects(tmp_path):
    loss = CrossBatchMemory(Contrastive(), size=5, warmup_steps=0)
    loss(*next(batches(1)))
    torch.save(loss.state_dict(), tmp_path / "state.pt")
    fresh = CrossBatchMemory(Contrastive(), size=5, warmup_steps=0)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(fresh.memory.embeddings, loss.memory.embeddings)
    assert fresh.memory._next == loss.memory._next


def test_a_state_of_another_size_is_refused():
    loss = CrossBatchMemory(Contrastive(), size=5, warmup_steps=0)
    loss(*next(batches(1)))
    with pytest.raises(RuntimeError, match="size mismatch for memory"):
        CrossBatchMemory(Contrastive(), size=6).load_state_dict(loss.state_dict())


def test_an_empty_state_resets():
    loss = CrossBatchMemory(Contrastive(), size=5, warmup_steps=0)
    start = copy.deepcopy(loss.state_dict())
    loss(*next(batches(1)))
    loss.load_state_dict(start)
    assert (loss.memory.fill, loss.memory._next, loss.steps) == (0, 0, 0)
    # Also with another dimension than before.
    assert loss(torch.eye(2), torch.tensor([0, 0])).item() == pytest.approx(2**0.5, abs=1e-6)


def test_half_precision_batches_are_stored_in_float32():
    loss = CrossBatchMemory(Contrastive(), size=10, warmup_steps=0)
    loss(torch.eye(2).bfloat16(), torch.tensor([0, 0], dtype=torch.int32))
    assert loss.memory.embeddings.dtype == torch.float32
    assert loss.memory.labels.dtype == torch.int64


def test_another_dimension_is_refused():
    loss = CrossBatchMemory(Contrastive(), size=10, warmup_steps=0)
    loss(torch.eye(2), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="embeddings must have 2 columns, as those in the memory, got 3"):
        loss(torch.eye(3), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize(("options", "message"), [({"size": 0}, "size"), ({"size": 1, "warmup_steps": -1}, "warmup")])
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=f"{message}.* must be at least"):
        CrossBatchMemory(Contrastive(), **options)
