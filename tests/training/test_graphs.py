from __future__ import annotations

import pytest
import torch

from nearkin.encoders import build_encoder
from nearkin.errors import Notice
from nearkin.training.graphs import GraphedEncoder
from nearkin.training.health import HealthCheck
from nearkin.training.step import train_step


def images(count, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator).to(device)


def test_on_a_cpu_it_is_the_encoder():
    encoder = build_encoder("small", dim=8).eval()
    encode = GraphedEncoder(encoder, torch.device("cpu"), None)
    assert torch.equal(encode(images(3)), encoder(images(3)))


@pytest.mark.parametrize(
    "compile, room, graphed",
    [("auto", True, True), ("auto", False, False), ("graphs", False, True), ("none", True, False)],
)
def test_graphs_are_made_unasked_where_there_is_room(state_for, compile, room, graphed):
    state = state_for(f"training.cuda_graphs={compile}")
    state.room_for_graphs = room
    assert isinstance(state.encode, GraphedEncoder) == graphed
    assert graphed or state.encode is state.encoder


def test_networks_of_other_packages_are_graphed_when_asked_for(state_for):
    for choice, graphed in (("auto", False), ("graphs", True)):
        state = state_for(f"training.cuda_graphs={choice}")
        state.recipe = state.recipe.with_changes({"encoder.backbone": "timm:anything"})
        state.room_for_graphs = True
        assert isinstance(state.encode, GraphedEncoder) == graphed


@pytest.mark.gpu
@pytest.mark.parametrize(
    "backbone, freeze, rest",
    [("small", False, False), ("resnet18", False, False), ("resnet18", True, False), ("resnet18", True, True)],
)
def test_graphs_give_what_the_encoder_gives(backbone, freeze, rest):
    encoder = build_encoder(backbone, dim=8, freeze_batch_norm=freeze, freeze_batch_norm_affine=rest).cuda()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encode = GraphedEncoder(encoder, torch.device("cuda"), None)

    def passes(function, inputs):
        encoder.load_state_dict(before)
        results = []
        for batch in inputs:
            encoder.zero_grad(set_to_none=True)
            embeddings = function(batch)
            (embeddings * torch.arange(8.0, device="cuda")).sum().backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in encoder.parameters()]
            results.append((embeddings.detach(), gradients))
        return results, {name: value.clone() for name, value in encoder.named_buffers()}

    # The third batch is of another shape, the fourth of the first again.
    inputs = [images(6, seed, "cuda") for seed in (1, 2)] + [images(4, 3, "cuda"), images(6, 4, "cuda")]
    plain, graphed = passes(encoder, inputs), passes(encode, inputs)
    assert encode._graphed is not None
    for (a, for_a), (b, for_b) in zip(plain[0], graphed[0], strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-3)
        for one, other in zip(for_a, for_b, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=2e-3 * float(one.abs().max() + 1), rtol=1e-2)
    for name, value in plain[1].items():
        torch.testing.assert_close(value, graphed[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_steps_with_graphs_learn_what_steps_without_do(state_for, next_batch, precision):
    """Through a warm-up, at whose end the backbone begins to take gradients."""
    losses = {}
    for how in ("none", "graphs"):
        torch.manual_seed(0)
        state = state_for(
            "training.device=cuda",
            f"training.cuda_graphs={how}",
            f"training.precision={precision}",
            "training.warmup_epochs=1",
            "training.learning_rate=0.0001",
        )
        batch, health = next_batch(state), HealthCheck(state)
        losses[how] = []
        for _ in range(state.warmup_steps + 4):
            train_step(state, batch, health)
            health.settle()
            losses[how].append(state.recent_losses[-1])
        if how == "graphs":
            assert state.encode._graphed is not None
            assert state.encode._trained == len(state.weights)
    assert losses["graphs"] == pytest.approx(losses["none"], rel=2e-2 if precision == "bf16" else 2e-3)


@pytest.mark.gpu
def test_a_network_that_cannot_be_graphed_trains_without():
    encoder = build_encoder("small", dim=8).cuda()
    forward = encoder.backbone.forward

    def asking(x):
        return forward(x) if float(x.sum()) > -1e9 else x  # waits for the device, which a graph cannot

    encoder.backbone.forward = asking
    encode = GraphedEncoder(encoder, torch.device("cuda"), None)
    with pytest.warns(Notice, match="without CUDA graphs"):
        embeddings = encode(images(4, device="cuda"))
    embeddings.sum().backward()
    assert torch.isfinite(encode(images(4, 1, "cuda"))).all()
