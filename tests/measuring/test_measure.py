"""measure against a direct double loop, and calibrated on nets whose equivariance is known."""

from __future__ import annotations

import json
import math
import re
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ien
from ien.measuring.choose_layers import choose_layers
from ien.measuring.floors import symmetric_kernels
from ien.measuring.page import measured_page
from tests.helpers.losses import D4, R4, R8, images, net, symmetrised


def double_loop(
    model: nn.Sequential, x: Tensor, group: ien.Group, depth: int, size: int
) -> tuple[float, float]:
    """Raw and relative error of ``model[:depth]``, image by image and element by element, in NumPy."""

    def pooled(z: Tensor) -> np.ndarray:
        maps = model[:depth](z).detach().numpy()
        return maps.reshape(len(maps), -1, size, *maps.shape[2:]).max(2)

    errors = []
    for image in x:
        for element in range(1, len(group)):
            g = torch.tensor([element])
            h, h_g = pooled(image[None]), pooled(group.act(image[None], g))
            difference = (h_g - group.act(torch.from_numpy(h), g).numpy()) ** 2
            valid = group.valid(torch.from_numpy(h), g)
            errors.append(
                difference.mean() if valid is None else difference[:, :, valid[0, 0].numpy()].mean()
            )
    return float(np.mean(errors)), float(np.mean(errors) / pooled(x).var())


@pytest.mark.parametrize("group", [R4, R8, ien.scale([0.7, 1.4])], ids=str)
@pytest.mark.parametrize("batch_size", [2, 64])
def test_equals_a_double_loop_whatever_the_batch_size(group, batch_size) -> None:
    model, x = net(), images(5)
    report = ien.measure(model, x, group, ["1", "3"], feature_groups=4, batch_size=batch_size)
    for name, depth in (("1", 2), ("3", 4)):
        raw, relative = double_loop(model, x, group, depth, 4)
        assert abs(report.layers[name].raw - raw) < 1e-12
        assert abs(report.layers[name].relative - relative) < 1e-11
    assert report.images == 5 and report.group == str(group)


def test_the_ruler_tells_symmetrised_from_random_kernels() -> None:
    exact = ien.measure(symmetrised(net()), images(8), D4, ["1", "3"], feature_groups=4)
    loose = ien.measure(net(), images(8), D4, ["1", "3"], feature_groups=4)
    assert all(abs(layer.relative) < 1e-20 for layer in exact.layers.values())
    assert all(layer.relative > 0.01 for layer in loose.layers.values())


def test_per_element_averages_to_the_relative_error() -> None:
    layer = ien.measure(net(), images(6), R8, "3", feature_groups=4).layers["3"]
    assert list(layer.per_element) == list(R8.labels[1:])
    assert abs(np.mean(list(layer.per_element.values())) - layer.relative) < 1e-12


def test_agrees_with_the_loss_on_the_same_images() -> None:
    model, x = net(), images(6)
    out = ien.EquivarianceLoss(R4, ["1", "3"], 4, samples="all")(model, x)
    report = ien.measure(model, x, R4, ["1", "3"], feature_groups=4)
    for name in ("1", "3"):
        assert abs(out.terms["rot4", name].item() - report.layers[name].raw) < 1e-14


def test_batches_may_come_from_a_loader() -> None:
    model, x = net(), images(7)
    loader = DataLoader(TensorDataset(x, torch.arange(7)), batch_size=3)
    whole = ien.measure(model, x, R4, ["1"], 4)
    batched = ien.measure(model, loader, R4, ["1"], 4)
    assert batched.images == 7
    assert abs(whole.layers["1"].raw - batched.layers["1"].raw) < 1e-14
    assert abs(whole.layers["1"].variance - batched.layers["1"].variance) < 1e-14


def test_model_is_left_as_it_was() -> None:
    model = nn.Sequential(*net(dtype=torch.float32), nn.BatchNorm2d(8), nn.Dropout()).train()
    model[4].eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = images(4, dtype=torch.float32)
    state = torch.get_rng_state()
    ien.measure(model, x, R4, ["4"], feature_groups=4)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(KeyError, match="no layer 'conv'"):
        ien.measure(model, x, R4, ["conv"])
    assert [module.training for module in model.modules()] == modes


def test_elements_without_a_valid_pixel_are_left_out() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)).double(), images(3)  # 2×2 maps
    layer = ien.measure(model, x, R8, ["0"], feature_groups=4).layers["0"]
    assert np.isnan(layer.per_element["45°"]) and layer.per_element["90°"] > 0
    assert abs(layer.raw - ien.measure(model, x, R4, ["0"], feature_groups=4).layers["0"].raw) < 1e-14
    (warning,) = layer.warnings
    assert warning == ("4 of 7 elements leave no valid pixel of 2×2, and are left out: 45°, 135°, 225°, 315°")
    assert layer.between is None and layer.exact is not None and abs(layer.exact - layer.relative) < 1e-12


def test_report_prints_a_table() -> None:
    text = str(ien.measure(net(), images(3), "rot4", ["1", "3"], 4))
    assert text.splitlines()[0] == "equivariance to rot4 over 3 images"
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["layer", "1", "3"]


class NanMaps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan")


class InfiniteAtZero(nn.Module):
    """Harmless on the images until a rotation fills a corner with zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, 4, 1, 1) + x.abs().amin((2, 3), keepdim=True).log()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"images": torch.rand(1, 9, 9)}, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
        ({"images": torch.zeros(0, 1, 9, 9)}, "at least two images.*got none"),
        ({"images": []}, "at least two images.*got none"),
        ({"images": images(1)}, "at least two images, better a hundred.*got one"),
        ({"images": torch.full((2, 1, 9, 9), float("nan"), dtype=torch.float64)}, "images contain NaN"),
        (
            {"images": [images(2, 9), images(2, 10)]},
            "must have the same size; got 1×9×9 and 1×10×10",
        ),
        ({"images": images(2).repeat(1, 3, 1, 1)}, r"fails on images 3×.* of torch.float64 .*1 channels"),
        (
            {"model": nn.Sequential(*net(), nn.Flatten(), nn.Linear(7, 2).double())},
            "fails on images 1×.*shapes",
        ),
        (
            {"model": nn.Sequential(*net()[:1], NanMaps())},
            "layer '1' returned NaN or infinite values, so it cannot",
        ),
        (
            {"model": nn.Sequential(InfiniteAtZero(), nn.Identity()), "group": R8},
            r"layer '1' returned .* under '45°'",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"layers": []}, "at least one layer"),
        ({"group": ien.rotation(1)}, "nothing to measure"),
        (
            {"group": "scale0.01", "images": images(2, 10)},
            r"the 8×8 map of layer '1' is too small for scale0\.01.*milder group, or leave the layer out",
        ),
    ],
)
def test_bad_input_says_what_was_needed(change, match) -> None:
    arguments = {"model": net(), "images": images(2), "group": R4, "layers": ["1"], "feature_groups": 4}
    with pytest.raises(ValueError, match=match):
        ien.measure(**arguments | change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": lambda x: x}, "must be a torch.nn.Module; got a function"),
        ({"images": np.zeros((2, 1, 9, 9))}, "got a ndarray .*torch.from_numpy"),
        ({"images": [{"image": images(2)}]}, "a tuple whose first entry is one; got a dict"),
        ({"labels": [0, 1]}, r"labels must be an integer tensor \(N,\).*got a list"),
        ({"labels": torch.zeros(2)}, "labels must be an integer tensor .*got torch.float32"),
    ],
)
def test_arguments_of_another_kind_are_named(change, match) -> None:
    arguments = {"model": net(), "images": images(2), "group": R4, "layers": ["1"], "feature_groups": 4}
    with pytest.raises(TypeError, match=match):
        ien.measure(**arguments | change)


def test_a_model_that_writes_into_its_input_is_measured_like_one_that_does_not() -> None:
    class Normalize(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.in_place = in_place

        def forward(self, x: Tensor) -> Tensor:
            return x.sub_(0.5).div_(0.25) if self.in_place else (x - 0.5) / 0.25

    x, convs = images(6), net()
    before = x.clone()
    reports = [
        ien.measure(nn.Sequential(Normalize(w), convs), x, R8, feature_groups=1) for w in (True, False)
    ]
    assert torch.equal(x, before) and reports[0].layers["1"] == reports[1].layers["1"]


@pytest.mark.parametrize("factor", [1.0, 1e-5, 1e-9])
def test_the_relative_error_and_its_flags_do_not_depend_on_the_scale(factor: float) -> None:
    model, x = net()[:1], images(8)
    nn.init.zeros_(model[0].bias)
    expected = ien.measure(model, x, R4, ["0"], 4).layers["0"]
    with torch.no_grad():
        model[0].weight *= factor
    layer = ien.measure(model, x, R4, ["0"], 4).layers["0"]
    assert abs(layer.relative / expected.relative - 1) < 1e-9 and not layer.constant
    assert layer.diversity is not None and expected.diversity is not None
    assert abs(layer.diversity / expected.diversity - 1) < 1e-9


def test_a_faint_signal_on_a_large_constant_is_not_constant() -> None:
    model = net()[:1]
    with torch.no_grad():
        model[0].bias.fill_(1000.0)
    assert not ien.measure(model, images(4), R4, ["0"], 4).layers["0"].constant  # variance 1e-7 of the square


def test_half_precision_nets_are_measured_in_float32() -> None:
    model, x = net(dtype=torch.float32), images(4, dtype=torch.float32)
    model[0].weight.data *= 3000  # squares beyond the range of float16
    half = ien.measure(model.half(), x.half(), R8, ["1"], 4).layers["1"]
    full = ien.measure(model.float(), x.half().float(), R8, ["1"], 4).layers["1"]
    assert half.raw > 65504 and abs(half.relative / full.relative - 1) < 0.01


def test_a_constant_layer_has_no_error_and_no_division_by_zero() -> None:
    model = net()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    layer = ien.measure(model, images(2), R4, ["3"], 4).layers["3"]
    assert layer.variance < 1e-30 and layer.relative == 0
    assert layer.constant and layer.warnings == ("its maps are constant: an error of 0 says nothing",)


def test_channels_that_do_not_divide_name_the_layer() -> None:
    with pytest.raises(ValueError, match="layer '3': 8 channels cannot be split into feature groups 5"):
        ien.measure(net(), images(2), R4, ["1", "3"], {"1": 4, "3": 5})


# --- with labels


def classifier() -> nn.Sequential:
    return nn.Sequential(*net(), nn.Flatten(), nn.LazyLinear(5, dtype=torch.float64))


@pytest.mark.parametrize("group", [R4, D4], ids=str)
def test_accuracies_equal_a_loop_over_images_and_elements(group: ien.Group) -> None:
    model, x, y = classifier(), images(20), torch.arange(20) % 5
    hits = dict.fromkeys(group.labels, 0)
    averaged = 0
    with torch.no_grad():
        for image, label in zip(x, y, strict=True):
            softmax = torch.zeros(5, dtype=torch.float64)
            for element, name in enumerate(group.labels):
                scores = model(group.act(image[None], torch.tensor([element])))[0]
                hits[name] += int(scores.argmax() == label)
                softmax += scores.softmax(0)
            averaged += int(softmax.argmax() == label)
    report = ien.measure(model, x, group, ["1"], 4, labels=y, batch_size=7)
    assert report.accuracy is not None and list(report.accuracy) == list(group.labels)
    assert all(abs(report.accuracy[name] - hits[name] / 20) < 1e-12 for name in hits)
    assert report.averaged_accuracy is not None and abs(report.averaged_accuracy - averaged / 20) < 1e-12
    assert len(set(report.accuracy.values())) > 1  # or the elements could be mixed up


def test_labels_change_nothing_else_and_are_printed() -> None:
    model, x, y = classifier(), images(10), torch.arange(10) % 5
    without, report = ien.measure(model, x, R4, ["1"], 4), ien.measure(model, x, R4, ["1"], 4, labels=y)
    assert without.layers == report.layers and without.accuracy is without.averaged_accuracy is None
    assert str(report).splitlines()[:-1] == str(without).splitlines()
    assert without.output is not None and report.output is not None
    assert without.output.flip_rate == report.output.flip_rate
    assert report.accuracy is not None
    assert (
        str(report).splitlines()[-1].startswith(f"accuracy: identity {report.accuracy['identity']:.2%}, 90°")
    )


def test_labels_are_in_the_order_of_the_batches_of_a_loader() -> None:
    model, x, y = classifier(), images(10), torch.arange(10) % 5
    whole = ien.measure(model, x, R4, ["1"], 4, labels=y)
    batched = ien.measure(model, DataLoader(TensorDataset(x, y), batch_size=4), R4, ["1"], 4, labels=y)
    assert whole.accuracy == batched.accuracy and whole.averaged_accuracy == batched.averaged_accuracy


@pytest.mark.parametrize(
    ("model", "labels", "match"),
    [
        (classifier(), torch.zeros(5).long(), r"one label per image; got \(6, 5\) and labels \(5,\)"),
        (classifier(), torch.zeros(7).long(), "one entry per image; got 7 labels for 6 images"),
        (classifier(), torch.zeros(6, 1).long(), r"got \(6, 5\) and labels \(6, 1\)"),
        (classifier(), torch.full((6,), 5), "labels must be 0 to 4 for scores of 5 classes; got 5 to 5"),
        (net(), torch.zeros(6).long(), r"returns \(B, classes\), and one label per image; got \(6, 8, "),
    ],
)
def test_labels_that_do_not_fit_are_an_error(model: nn.Module, labels: Tensor, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ien.measure(model, images(6), R4, ["1"], 4, labels=labels)


def test_labels_need_a_classifier_that_returns_one_tensor() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.conv(x)
            return h.mean((2, 3)), h

    with pytest.raises(ValueError, match="got a tuple and labels"):
        ien.measure(
            Pair(), torch.rand(2, 1, 4, 4), "rot4", ["conv"], labels=torch.zeros(2, dtype=torch.int64)
        )


# --- which layers


class InStyle(nn.Module):
    """As torchvision writes a ResNet: a shared in-place ReLU, stages, a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        )
        self.stage = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stage(self.relu(self.norm(self.conv(x))))).flatten(1))


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(self.body(x), x.shape[-2:], mode="bilinear")


class Deep(nn.Module):
    """No direct child returns maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (InStyle(), ["conv", "relu", "stage", "pool"]),  # the ReLU writes over the map of norm
        (nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())), ["0.0", "0.1"]),
        (nn.Sequential(nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))), ["0.0.0", "0.0.1"]),
        (nn.Sequential(Deep()), ["0.body.1"]),
        (Segmenter(), ["body.0", "body.1", ""]),
        (nn.Conv2d(1, 4, 3), [""]),
    ],
    ids=["resnet", "lone", "lonely", "deep", "segmenter", "layer"],
)
def test_without_layers_the_direct_children_and_the_last_map_are_taken(
    model: nn.Module, expected: list[str]
) -> None:
    report = ien.measure(model, torch.rand(2, 1, 8, 8), "rot4")
    assert list(report.layers) == expected and report.chosen
    assert "direct children" in str(report)
    named = ien.measure(model, torch.rand(2, 1, 8, 8), "rot4", expected)
    assert not named.chosen and "direct children" not in str(named)


def test_a_layer_that_runs_twice_is_not_chosen() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    assert choose_layers(
        nn.Sequential(nn.Conv2d(1, 4, 1), conv, conv, nn.ReLU()), torch.rand(1, 1, 8, 8)
    ) == ["0", "3"]


def test_feature_groups_by_layer_name_choose_the_layers() -> None:
    assert list(ien.measure(net(), images(2), R4, feature_groups={"3": 4}).layers) == ["3"]


def test_a_model_without_maps_says_so() -> None:
    with pytest.raises(ValueError, match="no layer of the model returns a map"):
        ien.measure(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), torch.rand(2, 1, 8, 8), "rot4")
    conv = nn.Conv2d(1, 1, 3, padding=1)
    with pytest.raises(ValueError, match=r"runs more than once .*\(0\): use a separate module for each call"):
        choose_layers(nn.Sequential(conv, conv, nn.Flatten(), nn.Linear(64, 2)), torch.rand(2, 1, 8, 8))
    with pytest.raises(TypeError, match=r"layer '1' returned a tensor of shape \(2, 2\).*\(B, C, H, W\)"):
        ien.measure(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), torch.rand(2, 1, 8, 8), "rot4", ["1"])


# --- floors


def strided() -> nn.Sequential:
    """Exact on odd sizes only."""
    torch.manual_seed(3)
    convs = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*convs).double()


def test_a_symmetrised_net_on_even_sizes_measures_its_grid_floor() -> None:
    for size, exact in ((9, True), (10, False)):
        layer = ien.measure(symmetrised(strided()), images(4, size), D4, ["3"], 4).layers["3"]
        assert layer.floor is not None
        assert (layer.relative < 1e-20) == (layer.floor < 1e-20) == exact
        for element in layer.elements.values():
            assert element.floor is not None and abs(element.floor - element.relative) < 1e-12


def test_the_grid_floor_is_that_of_the_net_with_averaged_kernels() -> None:
    x = images(5, 10)
    floors = ien.measure(strided(), x, R8, ["1", "3"], 4, batch_size=2).layers
    twin = ien.measure(symmetrised(strided()), x, R8, ["1", "3"], 4, floors=False).layers
    for name in floors:
        for label, element in floors[name].elements.items():
            if element.exact:
                assert element.floor is not None
                assert abs(element.floor - twin[name].elements[label].relative) < 1e-12
            assert twin[name].elements[label].floor is None
    assert twin["3"].floor is None and twin["3"].elements["90°"].relative > 0.01


def test_the_resampling_floor_is_the_cost_of_there_and_back() -> None:
    model, x, group = net(), images(4, 12), R8 * ien.scale([0.8])
    layer = ien.measure(model, x, group, ["3"], 4).layers["3"]
    h = ien.group_pool(model(x), 4).detach()
    for i, label in enumerate(group.labels):
        element = layer.elements.get(label)
        if element is None or element.exact:
            continue
        g, errors = torch.tensor([i]), []
        ones = torch.ones(1, 1, *h.shape[2:], dtype=torch.float64)
        known = group.act((group.act(ones, g) > 1 - 1e-6).double(), g, inverse=True)[0, 0] > 1 - 1e-6
        for one in h:
            back = group.act(group.act(one[None], g), g, inverse=True)
            errors.append(float((back - one)[..., known].square().mean()))
        assert element.floor is not None
        np.testing.assert_allclose(element.floor, np.mean(errors) / h.numpy().var(), rtol=1e-9)


class Pointwise(nn.Module):
    """Equivariant to everything but for resampling, which does not commute with what bends."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu(), (2 * x).sin()], 1)


def smooth(n: int, size: int) -> Tensor:
    """Noise whose details are a few pixels wide, of variance 1."""
    kernel = torch.exp(-torch.arange(-6, 7).double().square() / 4.5).view(1, 1, 1, -1)
    x = torch.randn(n, 1, size + 12, size + 12, dtype=torch.float64)
    x = nn.functional.conv2d(nn.functional.conv2d(x, kernel), kernel.transpose(2, 3))
    return x / x.std()


@pytest.mark.parametrize("size", [15, 16])
def test_a_pointwise_net_is_within_the_floor_at_every_factor(size: int) -> None:
    group = ien.scale([0.35, 0.5, 0.7, 0.9, 1.1, 1.2, 1.5, 2, 3])
    model, x = nn.Sequential(Pointwise()), smooth(20, size)
    elements = ien.measure(model, x, group, ["0"]).layers["0"].elements
    angle = ien.measure(model, x, R8, ["0"]).layers["0"].elements["45°"]
    for element in elements.values():
        assert element.floor is not None and element.relative < element.floor < 1
    for factor in (1.5, 2.0, 3.0):  # which would lead from pixels to pixels and back, at no cost
        element = elements[f"×{factor:g}"]
        assert element.floor == elements["×1.2"].floor and element.factor == factor
        assert angle.floor is not None and 0.3 < element.floor / angle.floor < 3
    factors = [e.floor for e in elements.values() if e.factor is not None and e.factor < 1]
    assert factors == sorted(factors, reverse=True)  # the smaller, the more detail is lost


class Blobs(nn.Module):
    """How strong the blobs of nine sizes are: over all sizes, the maximum follows an image that is scaled."""

    def __init__(self, size: float = 0.8) -> None:
        super().__init__()
        row = torch.arange(-14, 15).double()
        square, kernels = row.view(-1, 1) ** 2 + row**2, []
        for sigma in (size * 2 ** (k / 4) for k in range(9)):
            gauss = torch.exp(-square / (2 * sigma**2))
            kernels.append((square / sigma**2 - 2) * gauss / gauss.sum())
        self.kernels = nn.Parameter(torch.stack([k - k.mean() for k in kernels])[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.kernels, padding=14).abs()


def test_the_ruler_tells_a_layer_that_follows_scale_from_one_of_fixed_size() -> None:
    x, group = smooth(6, 33), ien.scale([0.5, 0.7, 0.85])
    follows = ien.measure(nn.Sequential(Blobs()), x, group, ["0"], 9).layers["0"]
    fixed = ien.measure(nn.Sequential(Blobs()), x, group, ["0"], 1).layers["0"]
    for label, element in follows.elements.items():
        assert element.floor is not None and element.relative < 1.5 * element.floor
        assert fixed.elements[label].relative > 2 * element.relative


def test_a_centre_alone_makes_no_floor() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 7)).double(), images(3)  # 3×3 maps
    report = ien.measure(model, x, R8 * ien.scale([0.7, 3]), ["0"], 4)
    for label in ("45°", "×0.7", "×3"):
        element = report.layers["0"].elements[label]
        assert element.relative > 0 and element.floor is not None and np.isnan(element.floor)
    assert report.to_dict()["layers"]["0"]["elements"]["×3"]["floor"] is None
    pooled = ien.measure(nn.Sequential(nn.Conv2d(1, 4, 9)).double(), x, "scale0.7", ["0"], 4).layers["0"]
    assert pooled.size == (1, 1) and pooled.floor == 0  # nothing to resample


def test_scalings_have_factors_and_columns_of_their_own() -> None:
    report = ien.measure(net(), images(4, 12), R4 * ien.scale([0.7, 1.4]), ["1", "3"], 4)
    elements = report.layers["3"].elements
    assert {label: e.factor for label, e in elements.items() if e.factor} == {"×0.7": 0.7, "×1.4": 1.4}
    assert elements["90° ×0.7"].degrees is elements["×0.7"].degrees is elements["90°"].factor is None
    header, rows = report.table()
    assert header[5:10] == ["quarter turns, flips", "resampled", "×0.7", "×1.4", "floor"]
    assert float(rows[1][7]) == pytest.approx(elements["×0.7"].relative, rel=0.06)
    assert report.to_dict()["layers"]["1"]["elements"]["×1.4"]["factor"] == 1.4
    many = ien.measure(net(), images(4, 12), ien.scale([0.9 + k / 100 for k in range(9)]), ["1"], 4)
    assert many.table()[0][5:] == ["floor", "diversity"] and "×0.97" in many.to_markdown()


def test_a_map_too_small_for_every_element_is_named_with_the_first_batch() -> None:
    def batches() -> Iterator[Tensor]:
        yield images(2)
        pytest.fail("a second batch was asked for")

    model = nn.Sequential(*net(), nn.AdaptiveAvgPool2d(2))
    with pytest.raises(ValueError, match=r"the 2×2 map of layer '4' is too small for scale0\.5,0\.9"):
        ien.measure(model, batches(), "scale0.5,0.9", ["3", "4"])


def test_black_boxes_have_no_floor() -> None:
    group = ien.custom("negative", {"invert": lambda z: 1 - z}, "identity")
    layer = ien.measure(net(), images(3), group, ["1"], 4).layers["1"]
    assert (
        layer.floor is None and layer.elements["invert"].floor is None and not layer.elements["invert"].exact
    )


class Functional(nn.Module):
    """Convolutions as functions and transposed ones, over kernels that are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.a = nn.Parameter(torch.randn(4, 1, 3, 3).double())
        self.up = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.body(nn.functional.conv2d(x, self.a, stride=2, padding=1)).relu())


def test_symmetric_kernels_average_every_convolution_and_touch_none() -> None:
    model, x = Functional(), images(3, 9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    copy = Functional()
    copy.load_state_dict(before)
    for kernel in (copy.a, copy.up.weight):
        turned = [torch.rot90(k, n, (-2, -1)) for k in (kernel.data, kernel.data.flip(-1)) for n in range(4)]
        kernel.data = torch.stack(turned).mean(0)
    with torch.no_grad(), symmetric_kernels():
        inside = model(x)
    np.testing.assert_allclose(inside.numpy(), copy(x).detach().numpy(), atol=1e-14)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert float((model(x) - inside).detach().abs().max()) > 0.01


def test_symmetric_kernels_reach_compiled_layers() -> None:
    model, x = strided(), images(3, 9)
    with torch.no_grad(), symmetric_kernels():
        expected = model(x)
    model[2].compile(backend="eager")
    with torch.no_grad():
        model(x)
        with symmetric_kernels():
            assert torch.equal(model(x), expected)


# --- the members of feature groups


def test_diversity_equals_a_loop_and_flags_copies() -> None:
    model, x = net(), images(6)
    with torch.no_grad():  # the first four channels become copies
        model[2].weight[1:4], model[2].bias[1:4] = model[2].weight[:1], model[2].bias[:1]
    layer = ien.measure(model, x, R4, ["3"], 4, batch_size=4).layers["3"]
    h = model(x).detach().numpy()
    groups: list[float] = []
    for first in range(0, 8, 4):
        members = h[:, first : first + 4]
        groups.append(np.mean(members.var(1, ddof=1)) / members.var())
    assert abs(groups[0]) < 1e-20 and groups[1] > 0.1
    assert layer.diversity is not None and abs(layer.diversity - np.mean(groups)) < 1e-12
    assert layer.collapsed == (0,) and layer.num_groups == 2
    with torch.no_grad():  # near copies still tell apart more than a hundredth
        model[2].weight[1:4] += 0.3 * model[2].weight[4:7]
    near = ien.measure(model, x, R4, ["3"], 4).layers["3"]
    assert near.collapsed == () and near.diversity is not None and near.diversity < layer.diversity + 0.2
    with torch.no_grad():
        model[2].weight[1:4] = model[2].weight[:1]
    assert "members of 1 of 2 feature groups are copies" in str(ien.measure(model, x, R4, ["3"], 4))


def test_unrelated_members_have_diversity_one_and_mixed_sizes_are_counted_in_blocks() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(1)
            return torch.randn(len(x), 11, 40, 40, generator=generator)

    layer = ien.measure(nn.Sequential(Noise()), torch.rand(8, 1, 9, 9), R4, ["0"], "4-2-1").layers["0"]
    assert layer.diversity is not None and abs(layer.diversity - 1) < 0.02
    assert layer.num_groups == 4 and layer.collapsed == ()
    single = ien.measure(nn.Sequential(Noise()), torch.rand(8, 1, 9, 9), R4, ["0"], 1).layers["0"]
    assert single.diversity is None and single.collapsed == ()


# --- the output


@pytest.mark.parametrize("classes", [5, 1])
def test_flips_and_logit_errors_equal_a_loop(classes: int) -> None:
    torch.manual_seed(2)
    model, x = nn.Sequential(*net(), nn.Flatten(), nn.LazyLinear(classes, dtype=torch.float64)), images(20)
    report = ien.measure(model, x, R8, ["1"], 4, batch_size=7)
    assert report.output is not None
    with torch.no_grad():
        model[-1].bias -= model(x).mean(0)  # a single score changes its sign for some images
        report = ien.measure(model, x, R8, ["1"], 4, batch_size=7)
        plain = model(x).numpy()
        for i, label in enumerate(R8.labels[1:], start=1):
            changed, squares = 0, []
            for k, image in enumerate(x):
                scores = model(R8.act(image[None], torch.tensor([i])))[0].numpy()
                same = scores.argmax() == plain[k].argmax() if classes > 1 else (scores > 0) == (plain[k] > 0)
                changed += int(not same)
                squares.append(np.mean((scores - plain[k]) ** 2))
            assert report.output is not None
            element = report.output.elements[label]
            assert abs(element.flip_rate - changed / 20) < 1e-12
            assert element.interval[0] <= element.flip_rate <= element.interval[1]
            np.testing.assert_allclose(element.logit_error, np.mean(squares) / plain.var(), rtol=1e-9)
    assert report.output is not None and 0 < report.output.flip_rate < 1


def test_maps_as_output_have_no_predictions() -> None:
    assert ien.measure(net(), images(3), R4, ["1"], 4).output is None


# --- many images, many angles


def test_intervals_are_those_of_a_bootstrap() -> None:
    # images of very different contrast: errors and variance rise together, and their ratio varies less
    contrast = torch.logspace(-1, 1, 300, dtype=torch.float64)[torch.randperm(300)]
    model, x = net(), images(300) * contrast.view(-1, 1, 1, 1)
    layer = ien.measure(model, x, R4, ["3"], 4, floors=False).layers["3"]
    h = ien.group_pool(model(x), 4).detach()
    errors = torch.stack(
        [
            (ien.group_pool(model(torch.rot90(x, k, (-2, -1))), 4).detach() - torch.rot90(h, k, (-2, -1)))
            .square()
            .mean((1, 2, 3))
            for k in (1, 2, 3)
        ]
    ).mean(0)
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(2000):
        picked = torch.from_numpy(rng.integers(0, 300, 300))
        ratios.append(float(errors[picked].mean() / h[picked].var(correction=0)))
    low, high = layer.interval
    assert low < layer.relative < high
    assert abs((high - low) / 2 / 1.96 / np.std(ratios) - 1) < 0.1


def test_images_are_held_one_batch_at_a_time() -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def batches() -> Iterator[Tensor]:
        nonlocal most
        for _ in range(6):
            x = images(3)
            alive.append(weakref.ref(x))
            yield x
            del x
            most = max(most, sum(reference() is not None for reference in alive))

    report = ien.measure(net(), batches(), R4, ["1"], 4)
    assert report.images == 18 and most <= 2


def test_a_curve_over_all_angles() -> None:
    report = ien.measure(symmetrised(net()), images(3, 13), "rot72", ["1"], 4)
    elements = report.layers["1"].elements.values()
    assert [e.degrees for e in elements] == [5.0 * k for k in range(1, 72)]
    assert [e.degrees for e in elements if e.exact] == [90.0, 180.0, 270.0]
    assert all((e.relative < 1e-20) == e.exact for e in elements)
    layer = report.layers["1"]
    assert (
        layer.exact is not None and layer.exact < 1e-20 and layer.between is not None and layer.between > 1e-4
    )


@pytest.mark.parametrize(
    ("group", "axis", "marks"),
    [
        ("rot8", "angle", ["0°", "90°", "180°", "270°", "360°"]),
        ("scale0.7,0.84,1.2,1.5", "factor", ["×0.7", "×0.84", "×1", "×1.2", "×1.5"]),
        ("scale0.8,1.2", None, []),  # too few for a curve
        ("rot4", None, []),
    ],
)
def test_the_page_has_a_curve_over_angles_or_factors(group: str, axis: str | None, marks: list[str]) -> None:
    report = ien.measure(net(), images(3, 13), group, ["1"], 4)
    page = measured_page(report)
    titles = re.findall(r"<h2>Relative error against the (\w+)</h2>", page)
    assert titles == ([] if axis is None else [axis])
    assert re.findall(r'text-anchor="middle">([^<]+)<', page) == marks
    lines = re.findall(r'<polyline[^>]* points="([^"]+)"', page)
    assert len(lines) == len(titles)
    for line in lines:
        x, y = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
        errors = [e.relative for e in report.layers["1"].elements.values() if math.isfinite(e.relative)]
        assert list(x) == sorted(x) and len(x) == len(errors)
        assert y.index(min(y)) == errors.index(max(errors))  # the largest error stands highest


def test_progress_is_not_printed_on_stdout_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = net(), images(4)
    assert ien.measure(model, x, R4, ["1"], 4, progress=True) == ien.measure(model, x, R4, ["1"], 4)
    assert capsys.readouterr().out == ""


# --- what is left on disk


def test_a_saved_report_holds_every_number_and_escapes_names(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict({"<b>&": nn.Conv2d(1, 4, 3), "a|b": nn.ReLU()})).double()
    report = ien.measure(model, images(4), "rot8", feature_groups=4)
    assert report.save(tmp_path / "new") == tmp_path / "new"
    content = json.loads((tmp_path / "new/report.json").read_text(encoding="utf-8"))
    assert content["layers"]["<b>&"]["relative"] == report.layers["<b>&"].relative
    assert content["layers"]["a|b"]["elements"]["45°"]["floor"] == report.layers["a|b"].elements["45°"].floor
    assert content["layers"]["a|b"]["between"] == report.layers["a|b"].between
    page = (tmp_path / "new/report.html").read_text(encoding="utf-8")
    assert (
        "<b>&" not in page and "&lt;b&gt;&amp;" in page and "http://" not in page and "https://" not in page
    )
    heights = [float(y) for y in re.findall(r"[\d.]+,([\d.]+)", re.findall(r'points="([^"]*)"', page)[0])]
    errors = [e.relative for e in report.layers["<b>&"].elements.values()]
    assert np.argmin(heights) == np.argmax(errors) and np.argmax(heights) == np.argmin(errors)
    markdown = (tmp_path / "new/report.md").read_text(encoding="utf-8")
    assert (
        r"a\|b" in markdown
        and "&lt;b&gt;&amp;" in markdown
        and "<b>" not in markdown
        and "Equivariance to rot8 over 4 images" in markdown
    )


def test_what_is_not_a_number_becomes_null(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)).double(), images(3)  # 2×2 maps
    ien.measure(model, x, R8, ["0"], feature_groups=4).save(tmp_path)
    content = json.loads(
        (tmp_path / "report.json").read_text(), parse_constant=lambda text: pytest.fail(text)
    )
    assert content["layers"]["0"]["elements"]["45°"]["relative"] is None
