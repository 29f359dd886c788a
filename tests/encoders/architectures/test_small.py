import pytest
import torch

from nearkin.encoders.architectures import build_backbone


@pytest.mark.parametrize("side", [28, 48, 64])
def test_takes_small_images(side):
    features = build_backbone("small")(torch.randn(2, 3, side, side))
    assert features.shape[1] == build_backbone("small").out_channels
    assert features.shape[2] == features.shape[3] >= 2


def test_is_small():
    assert 100_000 < sum(p.numel() for p in build_backbone("small").parameters()) < 1_000_000


def test_can_tell_four_patterns_apart_after_thirty_steps():
    """Stripes of four directions, noisy: a network whose layers are wired wrongly stays at chance, one in four."""
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    waves = torch.stack([(a * rows + b * columns).sin() for a, b in ((1, 0), (0, 1), (0.7, 0.7), (0.7, -0.7))])
    labels = torch.arange(32) % 4
    backbone = build_backbone("small")
    head = torch.nn.Linear(backbone.out_channels, 4)
    optimiser = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=1e-3)

    def noisy():
        return (waves[labels] + torch.randn(32, 28, 28))[:, None].expand(-1, 3, -1, -1)

    for _ in range(30):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(backbone(noisy()).mean((2, 3))), labels).backward()
        optimiser.step()
    backbone.eval()
    with torch.no_grad():
        accuracy = (head(backbone(noisy()).mean((2, 3))).argmax(1) == labels).float().mean()
    assert accuracy > 0.9
