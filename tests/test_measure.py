"""measure against a direct double loop, and calibrated on nets whose equivariance is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ien
from tests.test_loss import D4, R4, R8, images, net, symmetrised


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


def test_report_prints_a_table() -> None:
    text = str(ien.measure(net(), images(3), "rot4", ["1", "3"], 4))
    assert text.splitlines()[0] == "equivariance to rot4 over 3 images"
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["layer", "1", "3"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"images": torch.rand(1, 9, 9)}, r"shape \(N, C, H, W\); got \(1, 9, 9\)"),
        ({"images": torch.zeros(0, 1, 9, 9)}, "at least one image"),
        ({"images": []}, "at least one image"),
        ({"images": torch.full((2, 1, 9, 9), float("nan"), dtype=torch.float64)}, "layer '1' returned NaN"),
        ({"layers": []}, "at least one layer"),
        ({"group": ien.rotation(1)}, "nothing to measure"),
        ({"group": "scale0.01", "images": images(2, 10)}, "too small for scale0.01"),
    ],
)
def test_bad_input_says_what_was_needed(change, match) -> None:
    arguments = {"model": net(), "images": images(2), "group": R4, "layers": ["1"], "feature_groups": 4}
    with pytest.raises(ValueError, match=match):
        ien.measure(**arguments | change)


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
        (classifier(), torch.zeros(5), r"a label for each image; got \(6, 5\) and labels \(5,\)"),
        (classifier(), torch.zeros(7), "one for each image: got 7 for 6 images"),
        (classifier(), torch.zeros(6, 1), r"got \(6, 5\) and labels \(6, 1\)"),
        (net(), torch.zeros(6), r"an output \(B, classes\) and a label for each image; got \(6, 8, "),
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
