"""Tied weights and the paper's loss together: rotation by construction, scale by the loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = ien.scale([0.8, 1.25])


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 24, 5, padding=2, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 2),
    )


def blobs() -> tuple[Tensor, Tensor]:
    """Smooth noise, coarse or fine, which is the class."""
    rng = torch.Generator().manual_seed(0)
    coarse = F.interpolate(torch.rand(32, 1, 4, 4, generator=rng), 17, mode="bicubic")
    fine = F.interpolate(torch.rand(32, 1, 9, 9, generator=rng), 17, mode="bicubic")
    return torch.cat([coarse, fine]), torch.arange(64) // 32


def trained(beta: float, slack: float | str) -> tuple[nn.Module, ien.Tied]:
    torch.manual_seed(0)
    x, y = blobs()
    model = net()
    tied = ien.make_equivariant(model, "rot4", x[:8], slack=slack)
    objective = ien.EquivarianceLoss(SCALE, {"2": beta, "4": beta}, feature_groups=4, normalize=True)
    optimizer = torch.optim.Adam(tied.parameter_groups(5e-3))
    model.train()
    rng = torch.Generator().manual_seed(1)
    for epoch in range(4):
        for batch in torch.randperm(64, generator=rng).split(8):
            out = objective(model, x[batch], generator=rng)
            task = F.cross_entropy(out.output, out.repeat(y[batch]))
            (task + out.loss + tied.penalty()).backward()
            if slack == "auto":
                tied.listen(epoch, out.views)
            optimizer.step()
            optimizer.zero_grad()
    return model.eval(), tied


def error_under_scale(model: nn.Module) -> float:
    report = ien.measure(model, blobs()[0], SCALE, ["2", "4"], 4)
    return max(layer.relative for layer in report.layers.values())


def test_the_loss_lowers_errors_under_scale_and_rotation_stays_exact() -> None:
    x, _ = blobs()
    with_loss, tied = trained(beta=1.0, slack=0.0)
    without, _ = trained(beta=0.0, slack=0.0)
    assert error_under_scale(with_loss) < 0.5 * error_under_scale(without)
    assert max(tied.check(x).values()) < 1e-6
    torch.testing.assert_close(with_loss(x.rot90(1, (2, 3))), with_loss(x), atol=1e-5, rtol=1e-4)


def test_views_of_an_image_do_not_pass_for_two_images() -> None:
    # eight steps an epoch: batches are heard in parts, and noise prefers no orientation
    _, tied = trained(beta=0.1, slack="auto")
    heard = tied.evidence()[""]
    assert heard.steps >= 16 and abs(heard.certainty) < 4
    assert set(tied.slack().values()) == {0.0}
