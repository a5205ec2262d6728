"""What a trained network can do and costs: accuracy against a loop, cost against hand arithmetic."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.training.evaluate import cost, evaluate, inference_speed
from ien.training.network import build
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


def classifier(n: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A net whose answer depends on the rotation, blurred noise, and labels that are often its answers."""
    x = (F.interpolate(torch.rand(n, 1, 5, 5), 28, mode="bilinear") * 255).to(torch.uint8)
    model = build(toy.config(width=1 / 16))
    with torch.no_grad():
        for _ in range(20):
            model(x / 255)  # so that BatchNorm knows these images
        labels = model.eval()(x / 255).argmax(1)
    return model, x, torch.where(torch.arange(n) < 0.6 * n, labels, (labels + 1) % 10)


def test_accuracies_equal_a_loop_over_images_and_elements() -> None:
    model, x, y = classifier(300)  # more than a batch of the evaluation
    clean = copies = averaged = agreeing = 0
    with torch.no_grad():
        for image, label in zip(x, y, strict=True):
            scores = model(torch.stack([torch.rot90(image / 255, k, (-2, -1)) for k in range(4)]))
            hits = (scores.argmax(1) == label).tolist()
            agreeing += len(set(scores.argmax(1).tolist())) == 1
            clean += hits[0]
            copies += sum(hits[1:])
            averaged += bool(scores.softmax(1).mean(0).argmax() == label)
    assert len({clean / 300, copies / 900, averaged / 300}) == 3  # or the test could not tell them apart
    once, mean = (evaluate(toy.config(average=average), model, x, y) for average in (False, True))
    assert abs(once["accuracy"] - clean / 300) < 1e-12
    assert abs(once["accuracy_with_copies"] - (clean / 300 + copies / 900) / 2) < 1e-12
    assert abs(once["accuracy_under_group"] - (clean + copies) / 1200) < 1e-12
    assert abs(once["agreement"] - agreeing / 300) < 1e-12 and 0 < agreeing < 300
    assert abs(mean["accuracy"] - averaged / 300) < 1e-12
    assert (mean["accuracy_under_group"], mean["agreement"]) == (mean["accuracy"], 1)
    assert mean["accuracy_with_copies"] == mean["accuracy"] and mean["layers"] == once["layers"]


@pytest.mark.parametrize("feature_groups", ["4", "4-2-1"])
def test_layers_are_those_that_measure_reports(feature_groups, monkeypatch) -> None:
    """Pooled over all images, and channel by channel on the first of them."""
    monkeypatch.setattr("ien.training.evaluate.REGULAR_IMAGES", 12)
    config = toy.config(feature_groups=feature_groups)
    model, x = build(config).eval(), torch.randint(256, (20, 1, 28, 28)).to(torch.uint8)
    layers = evaluate(config, model, x, torch.zeros(20, dtype=torch.int64))["layers"]
    taps = [f"conv{i}" for i in range(1, 7)]
    pooled = ien.measure(model, x / 255, "rot4", taps, feature_groups)
    regular = ien.measure(model, x[:12] / 255, "rot4", taps, feature_groups, action="regular")
    assert list(layers) == taps
    for name, found in layers.items():
        ours, theirs = pooled.layers[name], regular.layers[name]
        assert [found["raw"], found["relative"]] == pytest.approx([ours.raw, ours.relative], rel=1e-4)
        assert found["relative_regular"] == pytest.approx(theirs.relative, rel=1e-4)
        assert abs(found["relative"] / theirs.relative - 1) > 1e-3  # it is not the pooled one
        assert list(found["per_element"]) == ["90°", "180°", "270°"]


@pytest.mark.parametrize(
    "changes", [{"measured": "scale1.25"}, {"feature_groups": "1"}, {"feature_groups": "3"}], ids=str
)
def test_where_no_members_are_permuted_there_is_no_such_error(changes) -> None:
    config = toy.config(**changes, beta=0.0)
    x = torch.randint(256, (20, 1, 28, 28)).to(torch.uint8)
    layers = evaluate(config, build(config).eval(), x, torch.zeros(20, dtype=torch.int64))["layers"]
    assert not any("relative_regular" in layer for layer in layers.values())


def test_cost_equals_hand_arithmetic() -> None:
    # channels, kernel and side of the map of each convolution, then the two linear layers
    layers = [(1, 16, 7, 24), (16, 24, 5, 24), (24, 32, 5, 12)]
    layers += [(32, 32, 5, 12), (32, 48, 5, 6), (48, 64, 5, 2)]
    macs = sum(before * after * kernel**2 * side**2 for before, after, kernel, side in layers)
    macs += 16 * 16 + 16 * 10
    parameters = sum(before * after * kernel**2 + 2 * after for before, after, kernel, _ in layers)
    parameters += 16 * 16 + 16 + 2 * 16 + 16 * 10 + 10
    config = toy.config(width=1 / 8)
    assert cost(config, build(config), (1, 28, 28)) == (parameters, macs)


def test_averaging_over_the_group_costs_a_pass_for_each_element() -> None:
    once, config = toy.config(), toy.config(average=True)
    x = torch.zeros(3, 1, 28, 28, dtype=torch.uint8)
    model = build(config)
    assert cost(config, model, x.shape[1:])[1] == 4 * cost(once, model, x.shape[1:])[1]
    calls: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    assert inference_speed(config, model, x, rounds=3) > 0 and calls == [3] * 12
