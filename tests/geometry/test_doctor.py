"""The doctor on whole networks, and its text."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from ien import doctor
from tests.helpers.blocks import BasicBlock
from tests.helpers.symmetrised import diagnosed, measured_exact, strided


def resnet(depths: list[int], width: int) -> nn.Sequential:
    model = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    inside = width
    for i, depth in enumerate(depths):
        for j in range(depth):
            model.append(BasicBlock(inside, width << i, 2 if i and not j else 1))
            inside = width << i
    return model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)])


def test_a_resnet_is_exact_at_225_and_not_at_224() -> None:
    with torch.device("meta"):  # no time for weights
        model = resnet([1, 1, 1, 1], 64)
    found = doctor(model, (3, 224, 224))
    assert not found.exact
    assert {193, 225, 257} <= set(found.exact_sizes) and all(n % 32 == 1 for n in found.exact_sizes)
    assert found.findings[0].op == "conv 7×7, stride 2, padding 3" and found.findings[0].size == (224, 224)
    modules = [(f.module.split(".")[0], f.shift) for f in found.findings]
    assert modules == [("0", 0.5), ("2", 1), ("4", 2), ("4", 2), ("5", 4), ("5", 4), ("6", 8), ("6", 8)]


def test_a_small_resnet_at_64_is_repaired_by_65_and_the_text_says_so() -> None:
    model = resnet([1, 1], 4)
    found = doctor(model, (3, 64, 64))
    assert not found.exact and min(n for n in found.exact_sizes if n > 64) == 65
    assert diagnosed(model, 65).exact and measured_exact(model, 65) and not measured_exact(model, 64)
    text = str(found)
    assert "at 64×64: not exact" in text and "0: conv 7×7, stride 2, padding 3, on 64×64" in text
    assert "relative error" in text and "off centre by 0.5 px" in text and "57 below, 65 above" in text


def test_a_flattened_map_is_found_at_its_linear_layer_and_no_size_repairs_it() -> None:
    maps = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3)]
    vgg = nn.Sequential(*maps, nn.Flatten(), nn.Linear(36, 8), nn.ReLU(inplace=True), nn.Linear(8, 5))
    found = doctor(vgg, (3, 9, 9))
    kinds = [(f.module, f.kind, f.size) for f in found.findings]
    assert kinds == [("2", "grid", (9, 9)), ("5", "flatten", (3, 3))]
    assert found.exact_sizes == () and set(found.grid_sizes) == {6, 8, 10, 12, 14, 16, 18}
    assert not measured_exact(vgg, 8)
    assert "no input size repairs everything (searched 5 to 18)" in str(found)
    assert "8 below, 10 above" in str(found) and "cost: depends on the weights" in str(found)


def lite(image_size: int) -> nn.Sequential:
    """The strides of an EfficientNet-Lite, with its padding "same" for images of one size.

    As TensorFlow pads: what a stride needs to return size / stride, the odd pixel right and below.
    """
    layers: list[nn.Module] = []
    inside, size = 3, image_size
    for outside, kernel, stride in [
        (4, 3, 2),
        (4, 3, 1),
        (8, 3, 2),
        (8, 5, 2),
        (8, 3, 2),
        (8, 5, 1),
        (8, 5, 2),
    ]:
        after = math.ceil(size / stride)
        needed = max((after - 1) * stride + kernel - size, 0)
        before, behind = needed // 2, needed - needed // 2
        layers.append(nn.ZeroPad2d((before, behind, before, behind)))
        layers += [
            nn.Conv2d(inside, outside, kernel, stride, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU6(),
        ]
        inside, size = outside, after
    return nn.Sequential(*layers)


@pytest.mark.parametrize("image_size", [64, 260])
def test_padding_of_one_side_that_is_never_read_is_exact_at_the_sizes_recommended(image_size: int) -> None:
    """The last column that a stride of 2 would read lies beyond those of an odd map."""
    model = lite(image_size)
    found = doctor(model, (3, image_size, image_size))
    assert not found.exact and not measured_exact(model, image_size)
    assert found.findings[0].op == "constant padding: left 0, right 1, top 0, bottom 1"
    assert len(found.exact_sizes) >= 3 and all(n % 2 for n in found.exact_sizes)
    for n in found.exact_sizes[:3]:
        assert (
            measured_exact(model, n) and not measured_exact(model, n - 1) and not measured_exact(model, n + 2)
        )
    assert image_size == 260 or {63, 95, 127} & set(found.exact_sizes)


def test_an_input_that_is_not_square_is_a_finding() -> None:
    found = doctor(strided(3), (3, 9, 13))
    assert [f.kind for f in found.findings] == ["input"] and not found.exact and 9 in found.exact_sizes


def test_a_diagnosis_is_plain_data() -> None:
    found = doctor(strided(3), (3, 8, 8))
    assert json.loads(json.dumps(dataclasses.asdict(found)))["findings"][0]["size"] == [8, 8]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.exact = True
    assert str(doctor(nn.Identity(), (3, 8, 8))).startswith("quarter turns and flips at 8×8: exact\n")


@pytest.mark.parametrize(
    "size",
    [224, (9, 9), (3, 9, 0), (3, 2.5, 2), (True, 8, 8), "abc", None, (1, 3, 8, 8), torch.rand(3, 8, 8)],
)
def test_a_wrong_input_size_says_what_to_give(size) -> None:
    message = r"must be \(channels, height, width\), such as \(3, 224, 224\), or images \(N, C, H, W\); got"
    with pytest.raises(ValueError, match=message):
        doctor(nn.Identity(), size)


SIZES = [np.array([3, 8, 8]), torch.rand(3, 8, 8).shape, torch.rand(5, 3, 8, 8)]


@pytest.mark.parametrize("size", SIZES, ids=["array", "shape", "images"])
def test_input_sizes_may_be_of_any_integers(size) -> None:
    assert doctor(nn.Identity(), size).input_size == (3, 8, 8)


@pytest.mark.parametrize(
    "model, what", [(len, "a builtin"), (None, "a NoneType"), (nn.ReLU, "the class ReLU")]
)
def test_what_is_no_model_is_named(model, what) -> None:
    with pytest.raises(TypeError, match=f"doctor takes a torch.nn.Module, such as .*; got {what}"):
        doctor(model, (3, 8, 8))


def test_advice_is_one_line_with_the_remedy_and_exact_sizes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2))
    assert doctor(net, (3, 17, 17)).advice == ""
    found = doctor(net, (3, 16, 16))
    assert found.advice.startswith(f"1, {found.findings[0].op}: {found.findings[0].reason}; remedy: ")
    assert found.advice.endswith(", ".join(map(str, found.exact_sizes))) and "\n" not in found.advice
