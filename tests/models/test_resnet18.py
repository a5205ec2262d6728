"""The ResNet18: parameters by arithmetic, maps against a written-out net."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.models.resnet18 import odd_sized, resnet18
from tests.helpers.nets import unsettled

TAPS = ("layer1", "layer2", "layer3", "layer4")


@pytest.mark.parametrize(
    ("feature_groups", "widths", "groups", "millions"),
    [
        (1, (64, 128, 256, 512), 512, 11.2),
        (4, (136, 272, 544, 1088), 272, 50.4),
        (8, (192, 384, 768, 1536), 192, 100.5),
        ("4-2-1", (88, 187, 374, 748), 272, 23.8),
        ("8-4-2-1", (129, 258, 516, 1032), 192, 45.4),
        ({8: 0.5, 4: 0.25, 2: 0.25}, (132, 264, 528, 1056), 192, 47.5),
    ],
)
def test_channels_and_parameters_are_those_of_the_paper(feature_groups, widths, groups, millions) -> None:
    with torch.device("meta"):
        model = resnet18(feature_groups)
    convs = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    # each stage: four and a shortcut, or the stem
    assert sorted(conv.out_channels for conv in convs) == sorted(5 * widths)
    count, before = 3 * 9 * widths[0], widths[0]
    for stage, after in enumerate(widths):
        count += 9 * (before * after + 3 * after**2) + 2 * (before + 3 * after)  # kernels, BatchNorms
        count += before * after if stage else 0
        before = after
    count += 2 * before + groups * 100 + 100
    biases = sum(conv.bias.numel() for conv in convs)
    total = sum(p.numel() for p in model.parameters())
    assert biases == 5 * sum(widths) and total == count + biases
    assert round(total / 1e6, 1) == millions
    assert feature_groups != 1 or round(count / 1e6, 3) == 11.218


def test_maps_and_scores_equal_those_written_out_from_the_weights() -> None:
    model = unsettled(resnet18("4-2-1", 1 / 16, num_classes=5).double())
    x, weights = torch.rand(3, 3, 32, 32, dtype=torch.float64), model.state_dict()

    def conv(name, h, **options):
        return F.conv2d(h, weights[f"{name}.weight"], weights[f"{name}.bias"], **options)

    def active(name, h):
        keys = ("running_mean", "running_var", "weight", "bias")
        mean, var, scale, shift = (weights[f"{name}.{key}"][:, None, None] for key in keys)
        return ((h - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)

    with torch.no_grad(), ien.capture(model, TAPS) as features:
        scores = model(x)
    h = conv("stem", F.interpolate(x, (33, 33), mode="bilinear", align_corners=False), padding=1)
    for tap in TAPS:
        for block, stride in ((f"{tap}.0", 1 if tap == "layer1" else 2), (f"{tap}.1", 1)):
            first = active(f"{block}.norm1", h)
            inner = active(f"{block}.norm2", conv(f"{block}.conv1", first, padding=1))
            inner = conv(f"{block}.conv2", inner, stride=stride, padding=1)
            h = inner + (conv(f"{block}.shortcut", first, stride=stride) if stride == 2 else h)
        if tap == "layer4":
            h = active("layer4.2", h)
        assert (features[tap] - h).abs().max() < 1e-12 * h.abs().max()
    units = 272 // 16 // 4  # of 11 channels: two groups of 4, one of 2, one of 1
    assert h.shape[1] == 11 * units
    fours, twos, ones = h.split([8 * units, 2 * units, units], 1)
    pooled = torch.cat([fours.unflatten(1, (-1, 4)).amax(2), twos.unflatten(1, (-1, 2)).amax(2), ones], 1)
    expected = pooled.mean((2, 3)) @ weights["classifier.weight"].T + weights["classifier.bias"]
    assert (scores - expected).abs().max() < 1e-12


def test_even_sides_grow_by_one_pixel_with_the_picture_kept_in_place() -> None:
    def stretched(rows: np.ndarray, size: int) -> np.ndarray:
        """Each row sampled again at the centres of ``size`` pixels that cover the same length."""
        old = rows.shape[-1]
        centres = (np.arange(size) + 0.5) * old / size - 0.5
        return np.apply_along_axis(lambda row: np.interp(centres, np.arange(old), row), -1, rows)

    x = torch.rand(2, 3, 12, 8, dtype=torch.float64)
    expected = stretched(stretched(x.numpy(), 9).swapaxes(2, 3), 13).swapaxes(2, 3)
    np.testing.assert_allclose(odd_sized(x).numpy(), expected, rtol=0, atol=1e-14)
    assert odd_sized(x[..., :7]).shape == (2, 3, 13, 7)
    assert odd_sized(x[:, :, :9, :7]).shape == (2, 3, 9, 7)


def test_only_the_last_statistics_move_fast() -> None:
    norms = [layer for layer in resnet18(width=1 / 16).modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [norm.momentum for norm in norms] == [0.1] * 16 + [0.9]
