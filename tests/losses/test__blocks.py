"""Losses over blocks of classes: equal to the plain form, in memory that does not grow with samples times classes."""

from __future__ import annotations

import copy
import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearkin import ranks
from nearkin.catalogue import keyword_options
from nearkin.errors import Notice
from nearkin.losses import _blocks, catalogue, kind
from nearkin.losses._blocks import block_size, by_blocks
from nearkin.losses._class_block import remove_radial_
from nearkin.losses._informative import InformativeSampleWeights
from nearkin.losses._proxy import ProxyLoss
from nearkin.losses._shards import OfRanks, Shards

CLASSES, DIM = 7, 5
LOSSES = {name: loss for name, loss in catalogue().items() if kind(loss) == "proxy"}
CASES = [
    (name, options)
    for name, loss in LOSSES.items()
    for options in (
        {},
        {"proxies_per_class": 3},
        {"proxies_per_class": 3, "class_similarity": "max"},
        {"proxies_per_class": 1},
        {"weighting": True},
        {"positive_norm": "all"},
        {"positive_norm": "present"},
    )
    if set(options) <= set(keyword_options(loss))
]


def made(name, options, *, dtype=torch.float64, classes=CLASSES):
    """The loss in a state in which all of it acts: memories filled, weights other than 1, lengths other than 1."""
    torch.manual_seed(3)
    options = dict(options)
    if "weighting" in options:
        options["weighting"] = InformativeSampleWeights(classes, DIM, memory_size=30)
    loss = LOSSES[name](classes, DIM, **options).to(dtype)
    if name != "vcpa":
        with torch.no_grad():
            loss.bank.vectors.mul_(torch.rand(classes, 1, 1) * 3 + 0.1)
    if loss.weighting is not None:
        loss.begin_epoch(2)
    x = torch.randn(3, 9, DIM, dtype=dtype, generator=torch.Generator().manual_seed(4))
    for batch in x:
        loss(batch, torch.arange(9) % (classes - 2))
    return loss


def batch(labels, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(labels))
    x = torch.randn(len(labels), DIM, dtype=torch.float64, generator=generator) * 3
    return x.to(dtype).requires_grad_(), torch.tensor(labels)


LABELS = {
    "some classes absent": [0, 3, 3, 1, 0, 3, 5],
    "one class": [2, 2, 2],
    "one sample": [4],
    "every class": [5, 4, 3, 2, 1, 0, 0, 6],
}


def results(loss, x, labels, factor=1.0):
    """Value and gradients by name, and the state after it."""
    value = loss(x, labels)
    leaves = {"embeddings": x, **{f"{key}.grad": p for key, p in loss.named_parameters() if p.requires_grad}}
    gradients = torch.autograd.grad(factor * value, list(leaves.values()))
    return {"value": value, **dict(zip(leaves, gradients, strict=True)), **loss.state_dict()}


def assert_equal(ours, expected):
    for (key, found), (name, exact) in zip(ours.items(), expected.items(), strict=True):
        assert key == name
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-11, msg=lambda text, key=key: f"{key}: {text}")


def in_blocks(monkeypatch, block):
    """From here on losses go by blocks of so many classes. Returns the list of the losses that did."""
    gone = []

    def counted(*arguments, **options):
        gone.append(arguments[3])
        return by_blocks(*arguments, **options, block=block)

    monkeypatch.setattr(_blocks, "PLAIN_BYTES", -1)
    monkeypatch.setitem(_blocks.BLOCK_BYTES, "cpu", 400)  # which VCPA's Newton steps go by
    monkeypatch.setattr("nearkin.losses._proxy.by_blocks", counted)
    return gone


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
@pytest.mark.parametrize("block", [1, 3, CLASSES])
@pytest.mark.parametrize("name, options", CASES)
def test_blocks_of_classes_make_no_difference(name, options, block, labels, monkeypatch):
    x, y = batch(labels)
    expected = results(made(name, options), x, y, factor=-2.5)
    loss = made(name, options)
    gone = in_blocks(monkeypatch, block)
    assert_equal(results(loss, x, y, factor=-2.5), expected)
    assert gone == [loss]


def one_step(name, options, monkeypatch, *, block, labels="some classes absent"):
    """A loss, going by blocks, and a batch with its value."""
    loss = made(name, options)
    in_blocks(monkeypatch, block)
    x, y = batch(LABELS[labels])
    return loss, x, y, loss(x, y)


@pytest.mark.parametrize("name, options", CASES)
def test_the_gradient_in_float32_is_off_by_rounding_only(name, options, monkeypatch):
    """Within a hundred roundings of exponents, which are up to α or the scale and multiply every term."""
    if name == "vcpa":
        pytest.skip("draws other noise in float32")
    x, y = batch(LABELS["some classes absent"])
    expected = results(made(name, options), x, y)
    loss = made(name, options).float()
    in_blocks(monkeypatch, 3)
    x = x.detach().float().requires_grad_()
    ours = results(loss, x, y)
    for key in ("value", "embeddings", "bank.vectors.grad"):
        exact = expected[key]
        bound = 100 * loss.negatives.scale * torch.finfo(torch.float32).eps * exact.abs().max().item()
        torch.testing.assert_close(ours[key].double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("options", [{}, {"proxies_per_class": 2}])
@pytest.mark.parametrize("name", ["mpa", "soft_triple", "proxy_nca", "mpa_ap"])
def test_gradcheck(name, options, monkeypatch):
    if not set(options) <= set(keyword_options(LOSSES[name])):
        options = {}
    loss = made(name, options)
    in_blocks(monkeypatch, 3)
    x, y = batch(LABELS["some classes absent"])
    vectors = loss.bank.vectors

    def value(x, vectors):
        return loss.of_proxies(x, vectors, y, tau=0.3)

    assert torch.autograd.gradcheck(value, (x, vectors), eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["proxy_anchor", "cosface"])
def test_gradients_may_be_taken_twice_and_of_one_side_only(name, monkeypatch):
    loss, x, y, value = one_step(name, {}, monkeypatch, block=2)
    vectors = loss.bank.vectors
    first = torch.autograd.grad(value, [x, vectors], retain_graph=True)
    again = torch.autograd.grad(3 * value, [x, vectors])
    torch.testing.assert_close(again, tuple(3 * gradient for gradient in first))
    torch.testing.assert_close(torch.autograd.grad(loss(x.detach(), y), [vectors])[0], first[1])
    vectors.requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad(loss(x, y), [x])[0], first[0])
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(loss(x.detach(), y), value.detach())


@pytest.mark.parametrize("name", LOSSES)
def test_degenerate_proxies_and_embeddings_have_finite_gradients(name, monkeypatch):
    loss = made(name, {}, dtype=torch.float32)
    in_blocks(monkeypatch, 2)
    with torch.no_grad():
        loss.bank.vectors[0] = 0.0
        loss.bank.vectors[1] = 1e-15
    x = torch.eye(3, DIM).mul_(torch.tensor([[0.0], [1.0], [1e-20]])).requires_grad_()
    value = loss(x, torch.tensor([0, 1, 2]))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in loss.parameters() if p.requires_grad)


def test_a_single_class_has_no_others(monkeypatch):
    for name in ("cosface", "mpa", "mpa_ap", "mpa_dw"):
        torch.manual_seed(0)
        loss = LOSSES[name](1, DIM).double()
        x, y = batch([0, 0])
        plain = results(loss, x, y)
        with monkeypatch.context() as patch:
            in_blocks(patch, 1)
            assert_equal(results(loss, x, y), plain)


def test_what_points_along_the_vectors_is_removed_as_autograd_does_it():
    torch.manual_seed(0)
    vectors, gradient = torch.randn(6, DIM, dtype=torch.float64, requires_grad=True), torch.randn(6, DIM).double()
    lengths = vectors.detach().norm(dim=1)
    (expected,) = torch.autograd.grad(torch.nn.functional.normalize(vectors), vectors, gradient)
    ours = gradient / lengths[:, None]
    remove_radial_(ours, vectors.detach(), lengths)
    torch.testing.assert_close(ours, expected)


class Largest(TorchDispatchMode):
    """The most elements of one storage that is made while active, and how many bytes are held at once at most."""

    def __init__(self):
        super().__init__()
        self.elements, self.peak, self.held = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known:
                size = t.untyped_storage().nbytes()
                self.elements = max(self.elements, size // t.element_size())
                self.held[t.untyped_storage().data_ptr()] = size, weakref.ref(t.untyped_storage())
        self.held = {at: (size, ref) for at, (size, ref) in self.held.items() if ref() is not None}
        self.peak = max(self.peak, sum(size for size, _ in self.held.values()))
        return result


class Threads:
    """Classes spread over threads, as they would be over processes: sums wait for everyone and are the same for all."""

    def __init__(self, sizes):
        self.sizes, self.barrier, self.given = sizes, Barrier(len(sizes)), [None] * len(sizes)

    def of(self, rank):
        threads = self

        class Rank(Shards):
            def gathered(self, x):
                threads.given[rank] = x.clone()
                threads.barrier.wait()
                all_of_them = torch.stack(list(threads.given))
                threads.barrier.wait()
                return all_of_them

            def sum(self, x):
                return self.gathered(x).sum(0)

            def log_sum_exp(self, x):
                return self.gathered(x).logsumexp(0)

        return Rank(first=sum(self.sizes[:rank]), classes=sum(self.sizes))


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (1, 5, 1)])
@pytest.mark.parametrize("name, options", CASES)
def test_classes_may_be_spread_over_processes(name, options, sizes):
    x, y = batch(LABELS["some classes absent"])
    whole = made(name, options)
    expected = results(made(name, options), x, y)
    threads = Threads(sizes)

    def part(rank):
        shards = threads.of(rank)
        loss = copy.deepcopy(whole)
        here = slice(shards.first, shards.first + sizes[rank])
        for key, held in [*loss.bank.named_parameters(), *loss.bank.named_buffers()]:
            requires = held.requires_grad
            held = held.detach()[here].clone()
            setattr(loss.bank, key, torch.nn.Parameter(held, requires) if key == "vectors" else held)
        loss.shards = shards
        return results(loss, x.detach().clone().requires_grad_(), y)

    with ThreadPoolExecutor(len(sizes)) as pool:
        parts = list(pool.map(part, range(len(sizes))))
    for key, exact in expected.items():
        found = [each[key] for each in parts]
        if key == "embeddings":
            found = [sum(found)]
        elif key.startswith("bank.") and not key.endswith("extra_state"):
            found = [torch.cat(found)]
        for each in found:
            torch.testing.assert_close(each, exact, rtol=1e-9, atol=1e-11, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("per_class", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_memory_does_not_grow_with_samples_times_classes(name, per_class, monkeypatch):
    samples, classes, dim, block = 96, 4000, 32, 100
    known = keyword_options(LOSSES[name])
    options = {"proxies_per_class": per_class, "memory_size": 200}
    if "proxies_per_class" not in known:
        per_class = 1
    torch.manual_seed(0)
    loss = LOSSES[name](classes, dim, **{key: value for key, value in options.items() if key in known})
    loss.begin_epoch(2)
    monkeypatch.setattr(_blocks, "PLAIN_BYTES", 4 * samples * classes // 2)
    monkeypatch.setitem(_blocks.BLOCK_BYTES, "cpu", 4 * samples * block * per_class)
    x, y = torch.randn(samples, dim, requires_grad=True), torch.randint(classes, (samples,))
    loss(x, y)  # whatever is made once
    proxies = loss.bank.vectors.numel()
    assert proxies < samples * classes
    with Largest() as largest:
        value = loss(x, y)
        value.backward()
    assert largest.elements <= proxies
    if name not in COPIES_PROXIES:
        # The gradient, and a few arrays of a block; MoCo-PA's batch has its queue beside it, of the same size here.
        assert largest.peak <= 4 * (proxies + 9 * block * samples * per_class)


COPIES_PROXIES = {"vcpa": "draws them anew at every step, and holds their means and deviations from before the step"}


class Hinge(ProxyLoss):
    """A loss by the book: the formula and nothing else."""

    def from_similarities(self, similarities, labels, weights=None):
        own = similarities.gather(1, labels[:, None])
        return (similarities - own + 0.2).clamp_min(0).mean()


def test_a_loss_that_has_no_parts_is_computed_as_a_whole_and_says_so_where_that_is_large(monkeypatch):
    loss, (x, y) = Hinge(CLASSES, DIM).double(), batch([0, 3, 3])
    expected = results(loss, x, y)
    monkeypatch.setattr(_blocks, "PLAIN_BYTES", 0)
    with pytest.warns(Notice, match=r"Hinge .* similarities of 3 samples to 7 proxies, .* from_parts"):
        assert_equal(results(loss, x, y), expected)
    loss.shards = Shards(first=0, classes=9)
    with pytest.raises(ValueError, match="from_parts"):
        loss(x, y)


def test_another_formula_does_not_inherit_the_parts_of_the_old_one():
    class Other(LOSSES["cosface"]):
        def from_similarities(self, similarities, labels, weights=None):
            return similarities.mean()

    assert LOSSES["cosface"].has_parts
    assert not Other.has_parts


def test_the_size_decides(monkeypatch):
    loss = LOSSES["proxy_anchor"](50, DIM)
    x, y = torch.randn(4, DIM), torch.arange(4)
    gone = in_blocks(monkeypatch, None)
    monkeypatch.setattr(_blocks, "PLAIN_BYTES", 4 * 50 * 4)
    loss(x, y)
    assert not gone
    monkeypatch.setattr(_blocks, "PLAIN_BYTES", 4 * 50 * 4 - 1)
    loss(x, y)
    assert gone
    assert 0 < block_size(torch.empty(10, 2), torch.empty(1, 2, 2)) * 2 * 10 * 4 <= _blocks.BLOCK_BYTES["cpu"]


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [256, 512])
@pytest.mark.parametrize("name", ["proxy_anchor", "cosface", "soft_triple", "mpa_dw", "proxy_isa"])
def test_a_step_on_a_gpu_holds_little_more_than_proxies_gradient_and_state(name, samples):
    options = {"proxies_per_class": 2} if "proxies_per_class" in keyword_options(LOSSES[name]) else {}
    with torch.device("cuda"):
        loss = LOSSES[name](400_000 // options.get("proxies_per_class", 1), 256, **options)
        x, y = torch.randn(samples, 256, requires_grad=True), torch.randint(loss.num_classes, (samples,))
    loss.begin_epoch(2)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3, fused=True)
    others = torch.cuda.memory_allocated() - loss.bank.vectors.nbytes
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        optimiser.zero_grad()
        loss(x, y).backward()
        optimiser.step()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - others <= 1.3 * 4 * loss.bank.vectors.nbytes


def test_rows_of_classes_that_are_here():
    rows, here = Shards(first=3, classes=9).rows(torch.arange(9), 3)
    assert here.tolist() == [False] * 3 + [True] * 3 + [False] * 3
    assert rows[here].tolist() == [0, 1, 2]
    assert ((rows >= 0) & (rows < 3)).all(), "any row that there is"


def test_sums_over_processes_are_element_by_element(monkeypatch):
    parts = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gathered = {1: parts}
    monkeypatch.setattr(ranks, "world", lambda: 3)
    monkeypatch.setattr(ranks, "gather_rows", lambda mine, world: gathered[len(mine)])
    expected = [math.log(sum(math.exp(part[place]) for part in parts.tolist())) for place in range(4)]
    assert OfRanks(first=0, classes=9).log_sum_exp(parts[0]).tolist() == pytest.approx(expected)
