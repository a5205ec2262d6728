"""Parts of a batch: against the gradients that torch computes for each part alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.tying.parts import Parts, forget_parts

LAYERS = [
    nn.Conv2d(4, 8, 3, padding=1),
    nn.Conv2d(4, 8, (3, 4), stride=2, padding=(2, 1), dilation=(1, 2)),
    nn.Conv2d(4, 8, (3, 5), padding="same", bias=False),
    nn.Conv2d(4, 8, 3, padding="valid", groups=2),
    nn.Conv2d(4, 8, 5, padding=2, padding_mode="reflect"),
    nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=4),
    nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1),
    nn.ConvTranspose2d(4, 8, 2, stride=2, groups=2),
    nn.Linear(9, 5),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_gradient_of_a_part_is_that_of_its_images_alone(layer) -> None:
    layer = layer.double()
    x = torch.randn(7, 4, 9, 9, dtype=torch.float64)
    parts = Parts({"layer": [layer]}, count=3)
    y = layer(x)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    shares = [share["layer"] for share in parts.take()]
    parts.close()
    for share, rows in zip(shares, torch.arange(7).tensor_split(3), strict=True):
        (expected,) = torch.autograd.grad((layer(x[rows]) * weights[rows]).sum(), layer.weight)
        torch.testing.assert_close(share, expected)
    torch.testing.assert_close(sum(shares), layer.weight.grad)
    assert not layer._forward_hooks


def test_views_of_an_image_stay_together_and_uses_of_a_weight_are_added() -> None:
    layer = nn.Linear(3, 2).double()
    x = torch.randn(8, 3, dtype=torch.float64)  # four images, and a view of each
    parts = Parts({"layer": [layer]}, count=2)
    parts.views = 2
    (layer(x).square().sum() + layer(2 * x).sum()).backward()
    shares = parts.take()
    assert parts.take() == []
    parts.close()
    for share, rows in zip(shares, ([0, 1, 4, 5], [2, 3, 6, 7]), strict=True):
        loss = layer(x[rows]).square().sum() + layer(2 * x[rows]).sum()
        torch.testing.assert_close(share["layer"], torch.autograd.grad(loss, layer.weight)[0])


def test_parts_without_images_have_a_gradient_of_0_and_eval_mode_has_none() -> None:
    layer = nn.Linear(3, 2)
    parts = Parts({"layer": [layer]}, count=4)
    layer(torch.rand(3, 3)).sum().backward()
    assert [bool(share["layer"].any()) for share in parts.take()] == [True, True, True, False]
    layer.eval()(torch.rand(3, 3)).sum().backward()
    assert parts.take() == []
    forget_parts(layer)
    assert not layer._forward_hooks and not layer._forward_hooks_with_kwargs


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        ien.GroupPool(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def test_the_share_of_an_image_rotates_with_that_image_and_with_no_other() -> None:
    # although BatchNorm lets all images of a batch see one another
    torch.manual_seed(0)
    x, y = torch.rand(6, 1, 9, 9, dtype=torch.float64), torch.arange(6) % 3
    model = net().double()
    tied = ien.make_equivariant(model, "rot4", x, slack=1.0)
    model.train()
    modules = {name: [model.get_submodule(name)] for name in tied.remainders}
    parts = Parts(modules, count=6)

    def shares(images: Tensor) -> list[dict[str, Tensor]]:
        F.cross_entropy(model(images), y).backward()
        return parts.take()

    before = shares(x)
    rotated = x.clone()
    rotated[2] = x[2].rot90(1, (1, 2))
    after = shares(rotated)
    for name, remainder in tied.remainders.items():
        for i in range(6):
            expected = before[i][name]
            if i == 2:
                expected = remainder.tie.moved(expected, 1)
            torch.testing.assert_close(after[i][name], expected, atol=1e-12, rtol=1e-7)
