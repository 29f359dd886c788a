"""The encoder's forward and backward pass as CUDA graphs: launched whole instead of kernel by kernel.

The host takes about as long to launch the kernels of a deep network as a fast GPU to compute them, and at small batches
longer. A graph holds on to the memory of its feature maps, so it needs room.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.encoders import Encoder
from nearkin.errors import notice


class GraphedEncoder:
    """``encoder(images)`` in training mode, by graphs for batches of one shape on a CUDA device.

    The graphs are made from the first batch, and anew when other weights take gradients than before, as after a
    warm-up. Batches of another shape go through the encoder as usual, and so does everything where making the graphs
    fails.

    >>> from nearkin.encoders import build_encoder
    >>> encode = GraphedEncoder(build_encoder("small", dim=8), torch.device("cpu"), None)
    >>> encode(torch.zeros(2, 32, 32, 3, dtype=torch.uint8)).shape
    torch.Size([2, 8])
    """

    def __init__(self, encoder: Encoder, device: torch.device, dtype: torch.dtype | None) -> None:
        self.encoder = encoder
        self.dtype = dtype
        self.on = device.type == "cuda"
        self._weights = list(encoder.parameters())
        self._shape: torch.Size | None = None
        self._trained = -1
        self._graphed: Callable[..., Any] | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.on and self._shape in (None, images.shape):
            trained = sum(weight.requires_grad for weight in self._weights)
            if trained != self._trained:
                self._shape, self._trained = images.shape, trained
                self._make(images)
            if self._graphed is not None:
                # The next batch is written over the graph's own result.
                return self._graphed(images).clone()  # type: ignore[no-any-return]
        return self.encoder(images)  # type: ignore[no-any-return]

    def _make(self, images: Tensor) -> None:
        self._graphed = None  # frees the memory of the graphs before
        # Passes that prepare the graphs leave no trace in running means, nor in what is random.
        buffers = [buffer.clone() for buffer in self.encoder.buffers()]
        random = torch.cuda.get_rng_state(images.device)
        # Weights gathered gradients on another stream while the graphs were made; that is as it should be.
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        try:
            # Outside of a cast: within one, what it has cast already would be left out of the graphs.
            with torch.autocast("cuda", enabled=False):
                self._graphed = torch.cuda.make_graphed_callables(
                    _Cast(self.encoder, self.dtype), (images.clone(),), allow_unused_input=True
                )
        except RuntimeError as error:
            self.on = False
            torch.cuda.empty_cache()
            notice(f"training goes on without CUDA graphs, which cannot be made of this network: {_first_line(error)}")
        with torch.no_grad():
            for buffer, before in zip(self.encoder.buffers(), buffers, strict=True):
                buffer.copy_(before)
        torch.cuda.set_rng_state(random, images.device)


class _Cast(nn.Module):
    """The encoder under a cast of its own, so that its ``forward`` stays as it is for others."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None, cache_enabled=False):
            return self.encoder(images)  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
