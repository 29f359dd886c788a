"""Vision transformers with timm's parameter names, so that its weight files load: ViT, DINOv2, CLIP, SigLIP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone
from nearkin.encoders.preprocessing import HALF, IMAGENET, Preprocessing
from nearkin.errors import RecipeError
from nearkin.numerics import fast_linear

Pool = Literal["class", "mean", "both"]

CLIP = Preprocessing(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))


class Linear(nn.Linear):
    """A linear layer whose products are :func:`~nearkin.numerics.fast_linear`, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        is_plain = x.dtype != torch.float32 or x.device.type != "cpu" or torch.is_autocast_enabled("cpu")
        if is_plain or torch.compiler.is_exporting():
            return super().forward(x)
        return _FastLinear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call, no-any-return]


class _FastLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return fast_linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        x_gradient = fast_linear(gradient, weight.T) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return x_gradient, None, None
        return x_gradient, fast_linear(rows.T, x.flatten(0, -2).T), rows.sum(dim=0)


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017): every token takes a weighted mean of all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        images, tokens, width = x.shape
        qkv = self.qkv(x).view(images, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.proj(mixed.transpose(1, 2).reshape(images, tokens, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, width: int, quick_gelu: bool) -> None:
        super().__init__()
        self.fc1 = Linear(width, 4 * width)
        self.fc2 = Linear(4 * width, width)
        self.quick_gelu = quick_gelu

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = x * torch.sigmoid(1.702 * x) if self.quick_gelu else F.gelu(x)
        return self.fc2(x)  # type: ignore[no-any-return]


class LayerScale(nn.Module):
    """A learnt factor for every channel of a branch, small at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Attention and a perceptron, each added to its input after layer-norm.

    In training a branch of an image is left out with probability ``drop_path`` (stochastic depth, Huang et al., 2016).
    """

    def __init__(
        self, width: int, heads: int, *, eps: float, quick_gelu: bool, layer_scale: bool, drop_path: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.ls1: nn.Module = LayerScale(width) if layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, quick_gelu)
        self.ls2: nn.Module = LayerScale(width) if layer_scale else nn.Identity()
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.ls1(self.attn(self.norm1(x))))
        return x + self._dropped(self.ls2(self.mlp(self.norm2(x))))

    def _dropped(self, branch: Tensor) -> Tensor:
        if not self.training or self.drop_path == 0:
            return branch
        kept = torch.rand(len(branch), 1, 1, device=branch.device) >= self.drop_path
        return branch * kept / (1 - self.drop_path)


class AttentionPool(nn.Module):
    """One learnt query that attends to all tokens, and a perceptron: the pooling of SigLIP."""

    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.latent = nn.Parameter(torch.randn(1, 1, width) * width**-0.5)
        self.q = Linear(width, width)
        self.kv = Linear(width, 2 * width)
        self.proj = Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, quick_gelu=False)

    def forward(self, x: Tensor) -> Tensor:
        images, tokens, width = x.shape
        shape = (self.heads, width // self.heads)
        query = self.q(self.latent).expand(images, 1, width).view(images, 1, *shape).transpose(1, 2)
        key, value = self.kv(x).view(images, tokens, 2, *shape).permute(2, 0, 3, 1, 4).unbind(0)
        x = self.proj(F.scaled_dot_product_attention(query, key, value).reshape(images, width))
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]


class VisionTransformer(Backbone):
    """Vision transformer (Dosovitskiy et al., ICLR 2021) without its classifier: ``[B, 3, H, W]`` → ``[B, C]``.

    An image is cut into patches; pixels that fill no patch are dropped. The tokens are the patches, a class token and
    perhaps registers. Positions are learnt on the grid of ``image_size`` and interpolated for other sizes.

    Args:
        width: of a token.
        heads: of attention.
        depth: number of blocks.
        patch: side of a patch in pixels.
        image_size: side of the images for which the weights have positions.
        pool: the class token, the mean of the patches, or both concatenated (2 · width). Without a class token it is
            attention pooling, as in SigLIP.
        class_token: whether there is one; it has a position unless there are registers.
        registers: number of extra tokens that the network may write to (Darcet et al., ICLR 2024).
        layer_scale: whether branches are scaled, as in DINOv2.
        pre_norm: whether tokens are normalised before the first block, as in CLIP.
        quick_gelu: the activation of OpenAI's CLIP instead of GELU.
        eps: of layer-norm.
        drop_path: probability that training leaves out a branch of the last block, rising linearly from 0 at the first.
        preprocessing: what the weights were trained with.

    Example:
        >>> vit = VisionTransformer(width=192, heads=3, image_size=64)
        >>> vit(torch.zeros(2, 3, 96, 96)).shape
        torch.Size([2, 192])
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        depth: int = 12,
        patch: int = 16,
        image_size: int = 224,
        pool: Pool = "class",
        class_token: bool = True,
        registers: int = 0,
        layer_scale: bool = False,
        pre_norm: bool = False,
        quick_gelu: bool = False,
        eps: float = 1e-6,
        drop_path: float = 0.0,
        preprocessing: Preprocessing = HALF,
    ) -> None:
        if not 0 <= drop_path < 1:
            raise RecipeError(f"encoder.options.drop_path must be at least 0 and below 1, got {drop_path}")
        channels = 2 * width if pool == "both" else width
        super().__init__(out_channels=channels, input_size=224, preprocessing=preprocessing)
        self.pool, self.grid = pool, image_size // patch
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, stride=patch, bias=not pre_norm)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, width)) if registers else None
        positions = self.grid**2 + int(class_token and not registers)
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, width))
        self.norm_pre: nn.Module = nn.LayerNorm(width, eps=eps) if pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(
            Block(
                width,
                heads,
                eps=eps,
                quick_gelu=quick_gelu,
                layer_scale=layer_scale,
                drop_path=drop_path * number / max(1, depth - 1),
            )
            for number in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=eps)
        self.attn_pool = None if class_token else AttentionPool(width, heads, eps)
        self.frozen_blocks = 0
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        for token in (self.cls_token, self.reg_token, self.pos_embed):
            if token is not None:
                nn.init.normal_(token, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad() if self.frozen_blocks else nullcontext():
            x = self.norm_pre(self.tokens(images))
            for block in self.blocks[: self.frozen_blocks]:
                x = block(x)
        for block in self.blocks[self.frozen_blocks :]:
            x = block(x)
        x = self.norm(x)
        if self.attn_pool is not None:
            return self.attn_pool(x)  # type: ignore[no-any-return]
        first, patches = x[:, 0], x[:, 1 if self.reg_token is None else 1 + self.reg_token.shape[1] :]
        if self.pool == "class":
            return first  # type: ignore[no-any-return]
        mean = patches.mean(dim=1)
        return torch.cat([first, mean], dim=1) if self.pool == "both" else mean

    def tokens(self, images: Tensor) -> Tensor:
        """Class token, registers and patches, with their positions: ``[B, tokens, width]``."""
        patches = self.patch_embed["proj"](images)
        rows, columns = patches.shape[-2:]
        x = patches.flatten(2).transpose(1, 2)
        first = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        positions = self.positions(rows, columns)
        if positions.shape[1] == x.shape[1]:
            return torch.cat([*first, x + positions], dim=1)
        return torch.cat([*first, x], dim=1) + positions

    def positions(self, rows: int, columns: int) -> Tensor:
        """The class token's position where it has one, then those of a grid of patches."""
        if (rows, columns) == (self.grid, self.grid):
            return self.pos_embed
        extra = self.pos_embed.shape[1] - self.grid**2
        grid = self.pos_embed[:, extra:].view(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([self.pos_embed[:, :extra], grid.flatten(2).transpose(1, 2)], dim=1)

    def freeze_blocks(self, count: int) -> None:
        if not 0 <= count <= len(self.blocks):
            raise RecipeError(f"encoder.frozen_blocks must be from 0 to {len(self.blocks)}, got {count}")
        self.frozen_blocks = count
        for layer in self.parameter_layers()[: count + 1] if count else ():
            for parameter in layer:
                parameter.requires_grad_(False)

    def parameter_layers(self) -> list[list[nn.Parameter]]:
        last = [*self.norm.parameters(), *(() if self.attn_pool is None else self.attn_pool.parameters())]
        later = [*(list(block.parameters()) for block in self.blocks), last]
        known = {id(parameter) for layer in later for parameter in layer}
        return [[p for p in self.parameters() if id(p) not in known], *later]


TINY, SMALL, BASE = ({"width": width, "heads": width // 64} for width in (192, 384, 768))


def _preset(what: str, model: str, **settings: Any) -> Callable[..., VisionTransformer]:
    """The builder of a network whose weights are ``model`` on the hub. All of them are under Apache-2.0."""

    def build(*, pool: Pool = "class", drop_path: float = 0.0) -> VisionTransformer:
        return VisionTransformer(**settings, pool=pool, drop_path=drop_path)

    build.__doc__ = what
    build.weights, build.licence = f"hub:timm/{model}", "Apache-2.0"  # type: ignore[attr-defined]
    return build


DINOV2 = {"patch": 14, "image_size": 518, "layer_scale": True, "preprocessing": IMAGENET}
REGISTERS = DINOV2 | {"registers": 4}
OPENAI = {"pre_norm": True, "quick_gelu": True, "eps": 1e-5, "preprocessing": CLIP}
BACKBONES = {
    "vit_tiny": _preset("ViT-Tiny/16, 192 channels.", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", **TINY),
    "vit_small": _preset("ViT-Small/16, 384 channels.", "vit_small_patch16_224.augreg_in21k_ft_in1k", **SMALL),
    "vit_base": _preset("ViT-Base/16, 768 channels.", "vit_base_patch16_224.augreg_in21k_ft_in1k", **BASE),
    "dino_small": _preset("ViT-Small/16 of DINO.", "vit_small_patch16_224.dino", **SMALL, preprocessing=IMAGENET),
    "dino_base": _preset("ViT-Base/16 of DINO.", "vit_base_patch16_224.dino", **BASE, preprocessing=IMAGENET),
    "dinov2_small": _preset("ViT-Small/14 of DINOv2.", "vit_small_patch14_dinov2.lvd142m", **SMALL, **DINOV2),
    "dinov2_base": _preset("ViT-Base/14 of DINOv2.", "vit_base_patch14_dinov2.lvd142m", **BASE, **DINOV2),
    "dinov2_small_registers": _preset(
        "ViT-Small/14 of DINOv2 with registers.", "vit_small_patch14_reg4_dinov2.lvd142m", **SMALL, **REGISTERS
    ),
    "clip_base": _preset(
        "ViT-Base/16, CLIP's network for images.", "vit_base_patch16_clip_quickgelu_224.openai", **BASE, **OPENAI
    ),
    "siglip_base": _preset(
        "ViT-Base/16, SigLIP's network for images.", "vit_base_patch16_siglip_224.webli", **BASE, class_token=False
    ),
}
