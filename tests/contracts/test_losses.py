"""What every loss of the catalogue promises about its value and gradients.

A new loss is found by its file and held to the same. ``test_losses_in_use.py`` has the rest: state, calls, words.
"""

from __future__ import annotations

import copy
import sys
import typing

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nearkin.losses import catalogue, class_similarities, kind, proxy_loss

PROXY = [name for name, loss in catalogue().items() if kind(loss) == "proxy"]
PAIR = [name for name, loss in catalogue().items() if kind(loss) == "pair"]
NOT_PROXY = [name for name in catalogue() if name not in PROXY]

# Parameters that the gradient must not reach, and why.
WITHOUT_GRADIENT = {"vcpa": {"bank.vectors": "is moved by the Newton steps of the forward pass, not by an optimiser"}}
# Losses whose value may depend on the order of the samples of a class, and why.
ORDERED = {"n_pair": "the first sample of a class is its anchor, the second its positive"}


# --- the value and its gradients -------------------------------------------------------------------------------------


def test_finite_scalar_from_the_first_step(member, training):
    loss = member.make().train(training)
    for seed in range(3):
        assert member.finite_step(loss, *member.batch(seed)).dtype == torch.float32


def test_gradients_reach_every_embedding_and_every_parameter(member):
    loss = member.settled()
    _, gradient = member.step(loss, *member.batch(9))
    assert (gradient.abs().sum(dim=1) > 0).all()
    without = WITHOUT_GRADIENT.get(member.name, {})
    for key, parameter in loss.named_parameters():
        reached = parameter.grad is not None and bool((parameter.grad != 0).any())
        assert reached != (key in without), f"{key}: {without.get(key, 'is not reached')}"


@pytest.mark.parametrize("member", PAIR, indirect=True)
def test_gradients_reach_references(member):
    loss = member.make()
    x, y = member.batch(0)
    references = member.batch(1, list(range(member.classes)))[0].requires_grad_()
    loss(x, y, references, torch.arange(member.classes)).backward()
    assert (references.grad.abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("member", PROXY, indirect=True)
def test_blocks_of_classes_and_plain_autograd_give_the_same(member, monkeypatch):
    """Whole, in blocks of two classes, and without any of our gradients."""

    def result():
        loss = member.settled().double().eval()
        x, y = member.batch(9)
        value, gradient = member.step(loss, x.double(), y)
        return value, gradient, *(p.grad for p in loss.parameters() if p.grad is not None)

    whole = result()
    per_class = getattr(member.make(), "proxies_per_class", 1)
    rows = max(member.dim, len(member.two_each)) * per_class * 8
    monkeypatch.setitem(class_similarities.BLOCK_BYTES, "cpu", 2 * rows)
    monkeypatch.setattr(class_similarities, "KEPT_BYTES", 0)
    torch.testing.assert_close(result(), whole, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(proxy_loss, "class_similarities", class_similarities.plain_class_similarities)
    torch.testing.assert_close(result(), whole, rtol=1e-9, atol=1e-12)


def test_second_derivatives_are_right(member):
    """Of the embeddings and of every parameter, held to differences of the first ones."""
    torch.manual_seed(1)
    loss = member.settled().double().eval()
    x, y = member.batch(9)
    leaves = [x.double().requires_grad_(), *(p for p in loss.parameters() if p.requires_grad)]
    direction = [torch.randn_like(leaf) for leaf in leaves]

    def slopes(step: float) -> tuple[Tensor, ...]:
        with torch.no_grad():
            for leaf, d in zip(leaves, direction, strict=True):
                leaf += step * d
        return torch.autograd.grad(loss(leaves[0], y), leaves)

    above, below = slopes(1e-6), slopes(-2e-6)
    slopes(1e-6)
    first = torch.autograd.grad(loss(leaves[0], y), leaves, create_graph=True)
    along = sum((g * d).sum() for g, d in zip(first, direction, strict=True))
    second = torch.autograd.grad(along, leaves, allow_unused=True)
    for ours, a, b in zip(second, above, below, strict=True):
        torch.testing.assert_close(torch.zeros_like(a) if ours is None else ours, (a - b) / 2e-6, rtol=1e-4, atol=1e-5)


def test_order_of_the_batch_does_not_matter(member):
    loss = member.settled().eval()
    x, y = member.batch(9)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    if member.name in ORDERED:
        # Whole classes change places; within a class the order stays.
        order = torch.stack([(y == c).nonzero().squeeze(1) for c in (4, 0, 6, 2, 1, 5, 3)], dim=1).flatten()
    (value, gradient), (shuffled, shuffled_gradient) = member.step(loss, x, y), member.step(loss, x[order], y[order])
    torch.testing.assert_close(shuffled, value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shuffled_gradient, gradient[order], rtol=1e-4, atol=1e-6)


def test_names_of_the_classes_do_not_matter(member):
    loss = member.settled().eval()
    new_name = torch.tensor([4, 6, 0, 5, 1, 3, 2])
    # ISA marks empty places in its memory with one label more than there are classes.
    table = torch.cat([new_name, torch.tensor([member.classes])])
    state = {}
    for key, value in loss.state_dict().items():
        if key.endswith("labels"):
            value = table[value]
        elif value.ndim > 0 and value.shape[0] == member.classes:
            value = torch.empty_like(value).index_copy_(0, new_name, value)
        state[key] = value
    renamed = member.settled().eval()
    renamed.load_state_dict(state)
    x, y = member.batch(9, [3, 0, 5, 0, 3, 1, 1, 1, 5, 0])
    (value, gradient), (other, other_gradient) = member.step(loss, x, y), member.step(renamed, x, new_name[y])
    torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("member", NOT_PROXY, indirect=True)
def test_losses_on_pairs_take_any_integers_as_labels(member):
    x, y = member.batch(0)
    far = torch.tensor([-(2**62), 2**62, -1, 0, 7, 2**40, 2**40 + 1])
    torch.testing.assert_close(member.make()(x, far[y]), member.make()(x, y))


def test_small_integer_labels_are_the_same_labels(member):
    x, y = member.batch(9)
    values = [member.settled().eval()(x, y.to(dtype)) for dtype in (torch.int64, torch.int32, torch.uint8)]
    assert values[0] == values[1] == values[2]


# --- unusual batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([5, 2, 5, 2], id="classes absent"),
        pytest.param([6], id="one sample"),
        pytest.param([3, 3, 3, 3, 3], id="one class"),
        pytest.param([0, 1, 2, 3, 4, 5, 6], id="each class once"),
        pytest.param([0, 1, 2, 3, 4, 5, 6] * 9, id="larger than the memories"),
    ],
)
def test_any_composition_of_a_batch(member, labels, training):
    for loss in (member.make().train(training), member.settled().train(training)):
        assert torch.isfinite(member.finite_step(loss, *member.batch(9, labels)))


@pytest.mark.parametrize("num_classes", [2, 20_000])
def test_few_and_many_classes(member, num_classes):
    loss = member.make(num_classes)
    for seed in range(2):
        assert torch.isfinite(
            member.finite_step(loss, *member.batch(seed, torch.tensor([0, num_classes - 1, 0, 1, num_classes - 1, 1])))
        )


@pytest.mark.parametrize("length", [1e-6, 1e6])
def test_very_short_and_very_long_embeddings(member, length, training):
    x, y = member.batch(9)
    x = torch.nn.functional.normalize(x)
    loss = member.settled().train(training)
    usual = member.settled().train(training)(x, y)
    torch.testing.assert_close(member.finite_step(loss, length * x, y), usual.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ["all equal", "exactly opposite", "zero"])
def test_degenerate_embeddings(member, shape, training):
    x, y = member.batch(9)
    x = x[:1].repeat(len(y), 1)
    if shape == "exactly opposite":
        # Both within a class and between classes.
        x[::3] *= -1
    elif shape == "zero":
        x[:5] = 0
    for loss in (member.make().train(training), member.settled().train(training)):
        assert torch.isfinite(member.finite_step(loss, x, y))
        assert torch.isfinite(member.finite_step(loss, x, y))


@pytest.mark.parametrize("member", PROXY, indirect=True)
def test_samples_on_top_of_and_opposite_their_proxies(member):
    loss = member.make().eval()
    for sign in (1, -1):
        assert torch.isfinite(
            member.finite_step(loss, sign * loss.bank.vectors[:, 0].detach(), torch.arange(member.classes))
        )


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_under_autocast(member, dtype):
    x, y = member.batch(9, torch.arange(60) % member.classes, dim=32)
    loss = member.settled(dim=32, rows=60).eval()
    expected = loss(x, y)
    x = x.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        value = loss(x, y)
    value.backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0.02, atol=0)
    assert x.grad.dtype == dtype
    assert torch.isfinite(x.grad).all()
    for key, parameter in loss.named_parameters():
        assert parameter.dtype == torch.float32, key
        assert parameter.grad is None or parameter.grad.dtype == torch.float32, key


def test_half_precision_training_keeps_its_state_in_float32(member):
    loss = member.make()
    for seed in range(3):
        x, y = member.batch(seed)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.isfinite(loss(x.bfloat16(), y))
    for key, value in loss.state_dict().items():
        assert not value.is_floating_point() or value.dtype == torch.float32, key


def test_double_precision(member):
    x, y = member.batch(9)
    single, double = member.settled().eval(), member.settled().eval().to(torch.float64)
    value = double(x.double(), y)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value.float(), single(x, y), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(double.train()(x.double(), y))


# --- speed -----------------------------------------------------------------------------------------------------------


class Ops(TorchDispatchMode):
    """Counts tensor operations and refuses those that would make the host wait for a device."""

    WAITING: typing.ClassVar[set[str]] = {
        "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "argwhere",
        "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "nonzero_numpy",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        called = func._schema.name.removeprefix("aten::")
        by_mask = called.startswith(("index", "_index_put")) and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)
            for argument in args[1:2]
            if isinstance(argument, list | tuple)
            for i in argument
        )
        grows = called == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if called in self.WAITING or by_mask or grows:
            raise AssertionError(f"{func} makes the host wait for the device")
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks of values, which are made on CPU tensors only."""
    for module in [module for key, module in sys.modules.items() if key.startswith("nearkin.losses")]:
        for check in ("check_embeddings", "checked_labels"):
            if hasattr(module, check):
                monkeypatch.setattr(module, check, lambda x, *args, **kwargs: x)


def test_the_check_for_waiting_finds_it():
    x = torch.ones(3)
    for wait in (lambda: float(x[0]), lambda: x[x > 0], lambda: x.nonzero(), lambda: bool((x > 0).all())):
        with pytest.raises(AssertionError, match="makes the host wait"), Ops():
            wait()


@pytest.mark.usefixtures("unchecked")
def test_neither_waits_for_the_device_nor_loops_over_samples_or_classes(member, training):
    counts = []
    for rows, num_classes in ((14, 7), (14, 23), (42, 23)):
        loss = member.settled(num_classes, rows=rows).train(training)
        x, y = member.batch(9, torch.arange(rows) // 2 % num_classes)
        x.requires_grad_()
        with Ops() as ops:
            loss(x, y).backward()
        counts.append(ops.count)
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.gpu
def test_does_not_wait_on_a_real_device(member, training):
    loss = member.settled().train(training)
    on_device = copy.deepcopy(loss).to("cuda")
    x, y = member.batch(9)
    moved = x.to("cuda").requires_grad_(), y.to("cuda")
    on_device(*moved).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = on_device(*moved)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(value)
    for module in (loss, on_device):
        module.load_state_dict(member.settled().state_dict())
    torch.testing.assert_close(on_device.eval()(*moved).cpu(), loss.eval()(x, y), rtol=1e-4, atol=1e-5)
