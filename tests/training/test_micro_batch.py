"""A batch in pieces: the gradient of the whole, in the memory of one piece."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from nearkin.encoders import build_encoder
from nearkin.errors import RecipeError
from nearkin.recipe import TrainingSection
from nearkin.training.micro_batch import check_micro_batch, embed_in_pieces, has_batch_statistics


class Network(nn.Module):
    """Two biases that autograd gives one and the same gradient tensor, a parameter that is not used, and dropout."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.one, self.other = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.unused = nn.Parameter(torch.zeros(2))
        self.dropout = nn.Dropout(rate)

    def forward(self, x):
        return self.second(self.dropout((self.first(x) + (self.one + self.other)).tanh()))


def of_pairs(embeddings):
    """A loss that looks at all embeddings together."""
    return (embeddings @ embeddings.T).exp().mean()


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("size", [1, 4, 5, 10])
def test_value_gradient_and_what_is_drawn_next_are_those_of_one_graph(rate, size):
    torch.manual_seed(0)
    network = Network(rate).double()
    parameters = list(network.parameters())
    pieces = list(torch.randn(10, 6, dtype=torch.float64).split(size))
    results = []
    for embed in (
        lambda: torch.cat([network(p) for p in pieces]),
        lambda: embed_in_pieces(network, pieces, parameters),
    ):
        torch.manual_seed(1)
        embeddings = embed()
        between = torch.rand(())  # as a loss may draw
        gradients = torch.autograd.grad(of_pairs(embeddings), parameters, allow_unused=True)
        results.append([embeddings.detach(), between, torch.rand(()), *gradients])
    for ours, plain in zip(results[1], results[0], strict=True):
        if plain is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-14)


class Reused(torch.autograd.Function):
    """``x · weight`` whose gradients lie in the same memory every time, as those of a CUDA graph do."""

    places: ClassVar = {}

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        place = Reused.places.setdefault("weight", x.new_empty(x.shape[1], gradient.shape[1]))
        return None, place.copy_(x.T @ gradient).detach()


def test_gradients_that_the_next_piece_writes_over_are_kept():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 3, dtype=torch.float64))
    x = torch.randn(10, 6, dtype=torch.float64)
    (ours,) = torch.autograd.grad(
        of_pairs(embed_in_pieces(lambda piece: Reused.apply(piece, weight), x.split(4), [weight])), [weight]
    )
    (plain,) = torch.autograd.grad(of_pairs(x @ weight), [weight])
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-14)


class Held:
    """Bytes that are kept for a backward pass, now and at most; for ``saved_tensors_hooks``."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def pack(self, tensor):
        return Keeper(self, tensor)

    def unpack(self, keeper):
        return keeper.tensor


class Keeper:
    def __init__(self, held, tensor):
        self.held, self.tensor = held, tensor
        held.now += tensor.nbytes
        held.most = max(held.most, held.now)

    def __del__(self):
        self.held.now -= self.tensor.nbytes


def most_held(step):
    held = Held()
    with torch.autograd.graph.saved_tensors_hooks(held.pack, held.unpack):
        step()
    return held.most


def test_only_one_piece_is_held_at_a_time():
    encoder = build_encoder("resnetv2_20", dim=8, freeze_batch_norm=True)
    images = torch.randint(0, 256, (24, 32, 32, 3), dtype=torch.uint8)
    parameters = list(encoder.parameters())

    def whole(count):
        return most_held(lambda: of_pairs(encoder(images[:count])).backward())

    def in_pieces(size):
        return most_held(lambda: of_pairs(embed_in_pieces(encoder, images.split(size), parameters)).backward())

    fixed = whole(2) - (whole(4) - whole(2))  # weights
    assert whole(24) > 5 * whole(4)
    for size in (2, 4, 8):
        assert in_pieces(size) == pytest.approx(whole(size), rel=0.05, abs=0.1 * abs(fixed))


@pytest.mark.parametrize(
    ("network", "live"),
    [
        (nn.Linear(2, 2), False),
        (nn.Sequential(nn.BatchNorm2d(2)), True),
        (nn.Sequential(nn.BatchNorm2d(2)).eval(), False),
        (nn.BatchNorm1d(2, track_running_stats=False).eval(), True),
        (build_encoder("small"), True),
        (build_encoder("small", freeze_batch_norm=True), False),
    ],
)
def test_a_network_that_looks_at_the_whole_batch_is_known(network, live):
    assert has_batch_statistics(network) == live


def test_pieces_with_batch_statistics_are_refused():
    check_micro_batch(TrainingSection(batch_size=8, micro_batch=8), True)
    check_micro_batch(TrainingSection(batch_size=8), True)
    check_micro_batch(TrainingSection(batch_size=8, micro_batch=7), False)
    with pytest.raises(
        RecipeError, match=r"micro_batch=7 .*statistics of its own: set encoder\.freeze_batch_norm=true"
    ):
        check_micro_batch(TrainingSection(batch_size=8, micro_batch=7), True)


@pytest.mark.gpu
def test_on_a_gpu_random_layers_draw_the_same_in_both_passes():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3)).cuda()
    parameters = list(network.parameters())
    pieces = torch.randn(10, 6, device="cuda").split(4)
    results = []
    for embed in (
        lambda: torch.cat([network(p) for p in pieces]),
        lambda: embed_in_pieces(network, pieces, parameters),
    ):
        torch.manual_seed(1)
        embeddings = embed()
        gradients = torch.autograd.grad(of_pairs(embeddings), parameters)
        results.append([embeddings.detach(), *gradients, torch.rand((), device="cuda")])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
