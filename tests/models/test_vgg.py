"""The VGG: parameters by arithmetic, maps against a written-out net."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.models import vgg
from tests.helpers.nets import unsettled

TAPS = ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "conv8")


@pytest.mark.parametrize(
    ("feature_groups", "widths", "groups", "millions"),
    [
        (1, (64, 128, 256, 256, *4 * [512]), 512, 9.853),
        (4, (144, 288, 576, 576, *4 * [1152]), 288, 47.073),
        (8, (200, 400, 800, 800, *4 * [1600]), 200, 90.333),
        ("4-2-1", (99, 198, 396, 396, *4 * [792]), 288, 22.464),
        ("8-4-2-1", (129, 258, 516, 516, *4 * [1075]), 200, 40.413),
        ("8-4-2", (132, 264, 550, 550, *4 * [1100]), 200, 42.784),
    ],
)
def test_channels_and_parameters_are_those_of_the_paper(feature_groups, widths, groups, millions) -> None:
    with torch.device("meta"):
        model = vgg(feature_groups)
    convs = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert tuple(conv.out_channels for conv in convs) == widths
    assert all(conv.kernel_size == (3, 3) and conv.bias is None for conv in convs)
    count = sum(9 * before * after + 2 * after for before, after in pairwise((3, *widths)))
    count += (groups + 1) * 1024 + 2 * 1024 + (1024 + 1) * 100
    assert sum(p.numel() for p in model.parameters()) == count
    assert round(count / 1e6, 3) == millions


def test_maps_and_scores_equal_those_written_out_from_the_weights() -> None:
    model = unsettled(vgg("8-4-2", 1 / 16, num_classes=5).double())
    weights = model.state_dict()

    def active(name, h):
        mean, var, scale, shift = (
            weights[f"{name}.{key}"].reshape(-1, *[1] * (h.ndim - 2))
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        h = (h - mean) / (var + 1e-5).sqrt() * scale + shift
        return torch.where(h > 0, h, h.expm1())

    h = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad(), ien.capture(model, TAPS) as features:
        scores = model(h)
    for i, tap in enumerate(TAPS, start=1):
        h = active(f"{tap}.1", F.conv2d(h, weights[f"{tap}.0.weight"], padding=1))
        assert (features[tap] - h).abs().max() < 1e-12 * h.abs().max()
        if i in (1, 2, 4, 6):
            h = h.unflatten(3, (-1, 2)).amax(4).unflatten(2, (-1, 2)).amax(3)
    units = h.shape[1] // 22  # two groups of 8, one of 4, one of 2
    parts = zip(h.split([16 * units, 4 * units, 2 * units], 1), (8, 4, 2), strict=True)
    pooled = torch.cat([part.unflatten(1, (-1, size)).amax(2) for part, size in parts], 1).mean((2, 3))
    hidden = pooled @ weights["classifier.0.weight"].T + weights["classifier.0.bias"]
    hidden = active("classifier.1", hidden)
    expected = hidden @ weights["classifier.4.weight"].T + weights["classifier.4.bias"]
    assert (scores - expected).abs().max() < 1e-12


def test_half_of_the_hidden_units_are_dropped_in_training_only() -> None:
    model = vgg(width=1 / 16, num_classes=5)
    kept = []
    model.classifier[4].register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    model(torch.rand(8, 3, 32, 32))
    assert kept[0].shape == (8, 1024) and abs((kept[0] == 0).double().mean() - 0.5) < 0.03
    model.eval()
    assert torch.equal(model(x := torch.rand(2, 3, 32, 32)), model(x))
