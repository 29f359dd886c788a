"""The members that the contract suites run over, and how to build, train and step one of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from nearkin.losses import Contrastive, catalogue, kind, options

# Applied wherever a loss has the option: memories that wrap around within a few batches.
_SMALL = {"size": 32, "warmup_steps": 1, "memory_size": 40, "queue_size": 20, "proxies_per_class": 3}
# Where the paper's setting for many classes is another: comparing all proxies with all takes a minute.
_MANY_CLASSES = {"proxy_gml": {"proxy_weight": 0.0}}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden curves anew instead of comparing")
    parser.addoption("--add-golden", action="store_true", help="write the golden curves that are missing")


@dataclass(frozen=True)
class LossMember:
    """One loss of the catalogue."""

    name: str
    # Seven classes: no other size here is seven, so that what is kept per class can be told from its shape.
    classes = 7
    dim = 4
    small = _SMALL
    two_each = (3, 0, 5, 0, 3, 6, 5, 6, 1, 1, 2, 2, 4, 4)

    @property
    def cls(self) -> type[nn.Module]:
        return catalogue()[self.name]

    @property
    def kind(self) -> str:
        return kind(self.cls)

    def make(self, classes: int = classes, dim: int = dim, **given: object) -> nn.Module:
        """A new loss with small memories; ``given`` overrides."""
        chosen = {key: value for key, value in _SMALL.items() if key in options(self.cls)} | given
        if classes > 1000:
            chosen |= _MANY_CLASSES.get(self.name, {})
        first = {"proxy": (classes, dim), "pair": (), "wrapper": (Contrastive(neg_margin=1.3),)}[self.kind]
        return self.cls(*first, **chosen)

    def settled(self, classes: int = classes, dim: int = dim, rows: int = 14) -> nn.Module:
        """A loss some steps into training: what starts late has started, queues have wrapped around."""
        torch.manual_seed(0)
        loss = self.make(classes, dim)
        if hasattr(loss, "begin_epoch"):
            loss.begin_epoch(2)
        for seed in range(4):
            loss(*self.batch(seed, (torch.arange(rows) // 2 + seed) % classes, dim))
        return loss

    def batch(self, seed: int, labels: object = two_each, dim: int = dim) -> tuple[Tensor, Tensor]:
        labels = torch.as_tensor(labels)
        return torch.randn(len(labels), dim, generator=torch.Generator().manual_seed(seed)), labels

    def step(self, loss: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Value, and gradient of the embeddings; gradients of parameters are left in them."""
        loss.zero_grad()
        x = x.detach().clone().requires_grad_()
        value = loss(x, y)
        value.backward()
        return value.detach(), x.grad

    def finite_step(self, loss: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The value, having checked that it is a scalar and finite, as are all gradients."""
        value, gradient = self.step(loss, x, y)
        assert value.shape == ()
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
        for key, parameter in loss.named_parameters():
            assert parameter.grad is None or torch.isfinite(parameter.grad).all(), key
        return value


@pytest.fixture(params=sorted(catalogue()))
def member(request: pytest.FixtureRequest) -> LossMember:
    """Every loss, or those named by an indirect parameter."""
    return LossMember(request.param)


@pytest.fixture(params=["train", "eval"])
def training(request: pytest.FixtureRequest) -> bool:
    return request.param == "train"
