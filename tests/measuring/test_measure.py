"""measure against a direct double loop, and calibrated on nets whose equivariance is known."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ien
from tests.helpers.losses import R4, R8, images, net, symmetrised
from tests.helpers.nets import Function, classifier


def double_loop(model, x, group, size):
    """Raw and relative error of ``model``, image by image and element by element, in NumPy."""

    def pooled(z):
        maps = model(z).detach().numpy()
        return maps.reshape(len(maps), -1, size, *maps.shape[2:]).max(2)

    errors = []
    for image in x:
        for element in range(1, len(group)):
            g = torch.tensor([element])
            h, h_g = pooled(image[None]), pooled(group.act(image[None], g))
            squares = (h_g - group.act(torch.from_numpy(h), g).numpy()) ** 2
            valid = group.valid(torch.from_numpy(h), g)
            errors.append(squares.mean() if valid is None else squares[:, :, valid[0, 0].numpy()].mean())
    return float(np.mean(errors)), float(np.mean(errors) / pooled(x).var())


@pytest.mark.parametrize("group", [R4, R8, ien.scale([0.7, 1.4])], ids=str)
@pytest.mark.parametrize("batch_size", [2, 64])
def test_equals_a_double_loop_whatever_the_batch_size(group, batch_size) -> None:
    model, x = net(), images(5)
    report = ien.measure(model, x, group, ["1", "3"], feature_groups=4, batch_size=batch_size)
    for name, depth in (("1", 2), ("3", 4)):
        raw, relative = double_loop(model[:depth], x, group, 4)
        assert abs(report.layers[name].raw - raw) < 1e-12
        assert abs(report.layers[name].relative - relative) < 1e-11
        per_element = report.layers[name].per_element
        assert list(per_element) == list(group.labels[1:])
        assert abs(np.mean(list(per_element.values())) - relative) < 1e-11
    assert report.images == 5 and report.group == str(group)


def test_a_symmetrised_net_is_exact_at_quarter_turns_only() -> None:
    layer = ien.measure(symmetrised(net()), images(3, 13), "rot72", ["1"], 4).layers["1"]
    elements = layer.elements.values()
    assert [e.degrees for e in elements] == [5.0 * k for k in range(1, 72)]
    assert [e.degrees for e in elements if e.exact] == [90.0, 180.0, 270.0]
    assert all((e.relative < 1e-20) == e.exact for e in elements)
    assert layer.exact < 1e-20 and layer.between > 1e-4


def test_elements_without_a_valid_pixel_are_left_out() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 4, 8)).double(), images(3)  # 2×2 maps
    layer = ien.measure(model, x, R8, ["0"], feature_groups=4).layers["0"]
    assert np.isnan(layer.per_element["45°"]) and layer.per_element["90°"] > 0
    assert abs(layer.raw - ien.measure(model, x, R4, ["0"], feature_groups=4).layers["0"].raw) < 1e-14
    (warning,) = layer.warnings
    assert warning == "4 of 7 elements leave no valid pixel of 2×2, and are left out: 45°, 135°, 225°, 315°"
    assert layer.between is None and abs(layer.exact - layer.relative) < 1e-12


@pytest.mark.parametrize("factor", [1.0, 1e-5, 1e-9])
def test_relative_error_and_diversity_do_not_depend_on_the_scale(factor) -> None:
    model, x = net()[:1], images(8)
    nn.init.zeros_(model[0].bias)
    expected = ien.measure(model, x, R4, ["0"], 4).layers["0"]
    with torch.no_grad():
        model[0].weight *= factor
    layer = ien.measure(model, x, R4, ["0"], 4).layers["0"]
    assert abs(layer.relative / expected.relative - 1) < 1e-9 and not layer.constant
    assert abs(layer.diversity / expected.diversity - 1) < 1e-9


@pytest.mark.parametrize(("bias", "constant"), [(0.0, True), (1000.0, True), (1000.0, False)])
def test_only_maps_without_any_signal_are_constant(bias, constant) -> None:
    model = net()[:1]
    nn.init.constant_(model[0].bias, bias)  # the variance is 1e-7 of the mean square
    if constant:
        nn.init.zeros_(model[0].weight)
    layer = ien.measure(model, images(4), R4, ["0"], 4).layers["0"]
    assert layer.constant == constant == (layer.relative == 0)
    assert layer.warnings == ("its maps are constant: an error of 0 says nothing",) * constant


def test_half_precision_nets_are_measured_in_float32() -> None:
    model, x = net(dtype=torch.float32), images(4, dtype=torch.float32)
    model[0].weight.data *= 3000  # squares beyond the range of float16
    half = ien.measure(model.half(), x.half(), R8, ["1"], 4).layers["1"]
    full = ien.measure(model.float(), x.half().float(), R8, ["1"], 4).layers["1"]
    assert half.raw > 65504 and abs(half.relative / full.relative - 1) < 0.01


def test_model_is_left_as_it_was() -> None:
    model = nn.Sequential(*net(dtype=torch.float32), nn.BatchNorm2d(8), nn.Dropout()).train()
    model[4].eval()
    x, modes = images(4, dtype=torch.float32), [module.training for module in model.modules()]
    before = copy.deepcopy([model.state_dict(), torch.get_rng_state()])
    ien.measure(model, x, R4, ["4"], feature_groups=4)
    torch.testing.assert_close([model.state_dict(), torch.get_rng_state()], before, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(KeyError, match="no layer 'conv'"):
        ien.measure(model, x, R4, ["conv"])
    assert [module.training for module in model.modules()] == modes


def test_a_model_that_writes_into_its_input_is_measured_like_any_other() -> None:
    x, convs = images(6), net()
    before = x.clone()
    in_place = nn.Sequential(Function(lambda z: z.sub_(0.5).div_(0.25)), convs)
    out_of_place = nn.Sequential(Function(lambda z: (z - 0.5) / 0.25), convs)
    writes, copies = ien.measure(in_place, x, R8), ien.measure(out_of_place, x, R8)
    assert torch.equal(x, before) and writes.layers == copies.layers and "1.0" in writes.layers


def test_labels_add_accuracies_and_may_come_with_batches_from_a_loader() -> None:
    model, x, y = classifier(5), images(10), torch.arange(10) % 5
    without, report = ien.measure(model, x, R4, ["1"], 4), ien.measure(model, x, R4, ["1"], 4, labels=y)
    assert without.layers == report.layers and without.output.flip_rate == report.output.flip_rate
    assert without.accuracy is without.averaged_accuracy is None
    *lines, last = str(report).splitlines()
    assert lines == str(without).splitlines()
    assert last.startswith(f"accuracy: identity {report.accuracy['identity']:.2%}, 90°")
    batched = ien.measure(model, DataLoader(TensorDataset(x, y), batch_size=4), R4, ["1"], 4, labels=y)
    assert batched.images == 10
    assert abs(report.layers["1"].raw - batched.layers["1"].raw) < 1e-14
    assert abs(report.layers["1"].variance - batched.layers["1"].variance) < 1e-14
    assert report.accuracy == batched.accuracy and report.averaged_accuracy == batched.averaged_accuracy


def test_layers_are_those_with_feature_groups_and_maps_are_no_predictions() -> None:
    report = ien.measure(net(), images(3), R4, feature_groups={"3": 4})
    assert list(report.layers) == ["3"] and report.output is None
