"""Vision transformers: exact against transformers, any size of image, frozen blocks, dropped paths."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.architectures.vit import Block, Linear, VisionTransformer
from nearkin.errors import RecipeError
from nearkin.recipe import TrainingSection
from nearkin.training.optimisation import parameter_groups

OURS = {"width": 32, "heads": 2, "depth": 2, "image_size": 64}
THEIRS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
FAMILIES = {
    "ViT": ({"intermediate_size": 128}, {"eps": 1e-12}),
    "Dinov2": ({}, {"layer_scale": True}),
    "Dinov2WithRegisters": ({}, {"layer_scale": True, "registers": 4}),
    "CLIPVision": ({"intermediate_size": 128}, {"pre_norm": True, "quick_gelu": True, "eps": 1e-5}),
    "SiglipVision": ({"intermediate_size": 128, "hidden_act": "gelu"}, {"class_token": False}),
}
NAMES = [
    (r"^(encoder\.)?layers?\.", "blocks."),
    (r"(self_attn|attention(\.attention)?)\.(q_proj|query)", "attn.q"),
    (r"(self_attn|attention(\.attention)?)\.(k_proj|key)", "attn.k"),
    (r"(self_attn|attention(\.attention)?)\.(v_proj|value)", "attn.v"),
    (r"self_attn\.out_proj|attention\.(o_proj|output\.dense)", "attn.proj"),
    (r"\.intermediate\.dense", ".mlp.fc1"),  # transformers before version 5
    (r"\.output\.dense", ".mlp.fc2"),
    (r"layernorm_before|layer_norm1", "norm1"),
    (r"layernorm_after|layer_norm2", "norm2"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"embeddings\.patch_embeddings?(\.projection)?", "patch_embed.proj"),
    (r"embeddings\.(cls_token|class_embedding)", "cls_token"),
    (r"embeddings\.register_tokens", "reg_token"),
    (r"embeddings\.position_embeddings?(\.weight)?", "pos_embed"),
    (r"^pre_layrnorm", "norm_pre"),
    (r"^(post_)?layernorm", "norm"),
    (r"head\.probe", "attn_pool.latent"),
    (r"head\.attention\.in_proj_", "attn_pool.qkv."),
    (r"head\.attention\.out_proj", "attn_pool.proj"),
    (r"head\.layernorm", "attn_pool.norm"),
    (r"head\.mlp", "attn_pool.mlp"),
]


def as_timm_has_them(weights, registers):
    """The weights of a network of transformers by timm's names."""
    renamed = {}
    for name, tensor in weights.items():
        for pattern, replacement in NAMES:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    for name in [name for name in renamed if ".attn.q." in name]:
        keys = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        renamed[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([renamed.pop(key) for key in keys])
    for kind in ("weight", "bias"):
        if (joint := renamed.pop(f"attn_pool.qkv.{kind}", None)) is not None:
            renamed[f"attn_pool.q.{kind}"], renamed[f"attn_pool.kv.{kind}"] = joint[:32], joint[32:]
    for name in {"cls_token", "pos_embed"} & renamed.keys():
        renamed[name] = renamed[name].view(1, -1, 32)
    if registers:  # timm adds the position of the class token to the token itself
        renamed["cls_token"] = renamed["cls_token"] + renamed["pos_embed"][:, :1]
        renamed["pos_embed"] = renamed["pos_embed"][:, 1:]
    return {name: tensor for name, tensor in renamed.items() if not re.match(r"pooler|embeddings", name)}


@pytest.mark.parametrize("family", FAMILIES)
def test_is_the_network_of_transformers(family):
    transformers = pytest.importorskip("transformers")
    further, options = FAMILIES[family]
    config = getattr(transformers, f"{family}Config")(**THEIRS, **further)
    theirs = getattr(transformers, f"{family}Model")(config).double().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    weights = {name.removeprefix("vision_model."): tensor for name, tensor in theirs.state_dict().items()}
    ours = VisionTransformer(**OURS, **options).double().eval()
    ours.load_state_dict(as_timm_has_them(weights, options.get("registers")))
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    output = theirs(images)
    pooled = family in ("CLIPVision", "SiglipVision")
    expected = output.pooler_output if pooled else output.last_hidden_state[:, 0]
    torch.testing.assert_close(ours(images), expected, rtol=1e-9, atol=1e-9)


def small(**options):
    torch.manual_seed(0)
    return VisionTransformer(**OURS, **options)


def test_positions_are_interpolated_for_other_sizes_and_forms():
    vit = small().double().eval()
    with torch.no_grad():  # positions that grow to the right and down
        vit.pos_embed[:, 1:] = torch.arange(16.0).view(1, 16, 1).expand(1, 16, 32)
    grid = vit.positions(4, 8)[0, 1:, 0].view(4, 8)
    assert vit.positions(4, 4) is vit.pos_embed
    assert (grid.diff(dim=1) > 0).all()
    assert (grid.diff(dim=0) > 0).all()
    torch.testing.assert_close(vit.positions(4, 8)[0, 0], vit.pos_embed[0, 0])
    assert vit(torch.randn(1, 3, 70, 130, dtype=torch.float64)).shape == (1, 32)


def test_pools_the_class_token_the_patches_or_both():
    images = torch.randn(2, 3, 64, 64)
    by_pool = {pool: small(pool=pool, registers=2).eval()(images) for pool in ("class", "mean", "both")}
    torch.testing.assert_close(by_pool["both"], torch.cat([by_pool["class"], by_pool["mean"]], dim=1))
    vit = small(registers=2).eval()
    tokens = vit.tokens(images)
    for block in vit.blocks:
        tokens = block(tokens)
    torch.testing.assert_close(by_pool["mean"], vit.norm(tokens)[:, 3:].mean(dim=1))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_frozen_blocks_take_no_gradient_and_keep_nothing(count):
    vit = small()
    vit.freeze_blocks(count)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        vit(torch.randn(2, 3, 64, 64)).sum().backward()
    trained = {
        name.split(".")[1] if name.startswith("blocks") else name
        for name, p in vit.named_parameters()
        if p.grad is not None
    }
    assert trained & {"0", "1"} == {str(number) for number in range(count, 2)}
    assert ("pos_embed" in trained) == (count == 0)
    assert "norm.weight" in trained
    whole = small()
    everything = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: everything.append(x) or x, lambda x: x):
        whole(torch.randn(2, 3, 64, 64)).sum()
    assert count == 0 or len(kept) < len(everything) / count


def test_frozen_blocks_must_be_there():
    with pytest.raises(RecipeError, match="12"):
        build_encoder("vit_tiny", frozen_blocks=13)
    with pytest.raises(RecipeError, match="ResNet"):
        build_encoder("resnet18", frozen_blocks=1)


def test_layer_decay_lowers_the_rate_from_the_last_block_to_the_first():
    encoder = build_encoder("vit_tiny", dim=8)
    groups = parameter_groups(encoder, [], TrainingSection(learning_rate=1.0, layer_decay=0.5))
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    vit = encoder.backbone
    assert rates[id(vit.norm.weight)] == 1.0
    assert rates[id(vit.blocks[11].norm1.weight)] == 0.5
    assert rates[id(vit.blocks[0].norm1.weight)] == 0.5**12
    assert rates[id(vit.patch_embed.proj.weight)] == rates[id(vit.cls_token)] == 0.5**13
    assert len(rates) == len(list(encoder.parameters()))


def test_a_dropped_path_leaves_out_branches_of_single_images():
    torch.manual_seed(0)
    block = Block(32, 2, eps=1e-6, quick_gelu=False, layer_scale=False, drop_path=0.5)
    branch = torch.ones(4000, 1, 2)
    dropped = block._dropped(branch)
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    assert (dropped[:, :, 0] == dropped[:, :, 1]).all()
    assert abs(dropped.mean().item() - 1.0) < 0.1
    assert block.eval()._dropped(branch) is branch
    rates = [block.drop_path for block in build_backbone("vit_tiny", {"drop_path": 0.11}).blocks]
    assert rates == pytest.approx([0.01 * number for number in range(12)])


def test_the_fast_layer_is_the_plain_one():
    torch.manual_seed(0)
    fast = Linear(24, 40)
    plain = nn.Linear(24, 40)
    plain.load_state_dict(fast.state_dict())
    x = torch.randn(3, 5, 24)
    gradient = torch.randn(3, 5, 40)
    results = []
    for layer in (fast, plain):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y.backward(gradient)
        results.append((y, leaf.grad, layer.weight.grad, layer.bias.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(x).dtype == torch.bfloat16


def test_attention_is_that_of_the_paper():
    vit = small().double().eval()
    attention, x = vit.blocks[0].attn, torch.randn(1, 5, 32, dtype=torch.float64)
    query, key, value = F.linear(x, attention.qkv.weight, attention.qkv.bias).chunk(3, dim=-1)
    heads = []
    for head in range(2):
        part = slice(16 * head, 16 * head + 16)
        weights = (query[..., part] @ key[..., part].mT / 4.0).softmax(dim=-1)
        heads.append(weights @ value[..., part])
    expected = attention.proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x), expected, rtol=1e-10, atol=1e-10)
