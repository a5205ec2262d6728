"""What the latest maps say about the next ones, where maps alone cannot tell."""

import pytest
import torch
from torch import nn

import ien
from ien.tying.detect import views_of
from ien.tying.flow import REMEMBERED_MAPS, Flow

R4 = ien.rotation(4)


def test_channels_of_images_are_no_members_even_if_they_are_equal() -> None:
    net = nn.Sequential(nn.Conv2d(4, 8, 3))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9).expand(2, 4, 9, 9))
    assert start.layers["0"].before == "1"
    report = ien.measure(net, torch.rand(2, 4, 9, 9), "rot4", ["0"], 4, action="regular")
    assert report.layers["0"].relative < 1e-10


@pytest.fixture
def flow() -> Flow:
    return Flow(R4, [ien.FeatureGroups.of(size) for size in (4, 2)], views_of(torch.rand(2, 1, 5, 5), R4))


def test_constant_maps_have_the_feature_groups_of_the_latest_ones(flow) -> None:
    zeros = torch.zeros(8, 8, 5, 5)
    assert flow.feature_groups(zeros).blocks == ((4, 8),)
    assert flow.feature_groups(zeros.clone(), expected=((2, 8),)).blocks == ((2, 8),)
    assert flow.feature_groups(zeros.clone()).blocks == ((2, 8),)


def test_few_maps_are_held_and_those_overwritten_are_looked_at_again(flow) -> None:
    for _ in range(10):
        h = torch.zeros(8, 4, 5, 5)
        assert flow.feature_groups(h) is flow.feature_groups(h.view_as(h)) is not None
    assert len(flow._latest) == REMEMBERED_MAPS
    h += torch.rand(8, 4, 5, 5)
    assert flow.feature_groups(h) is None and flow.relative_error(h) > 0.1


@pytest.mark.parametrize(("feature_groups", "specs"), [({"": 4, "2": 2}, "42"), ({"": 2, "2": 4}, "24")])
@pytest.mark.parametrize("dead", ["weights", "activations"])
def test_dead_layers_keep_the_feature_groups_they_were_given(feature_groups, specs, dead) -> None:
    convs = [nn.Conv2d(before, 8, 3) for before in (1, 8, 8)]
    net = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), nn.MaxPool2d(1), convs[2])
    if dead == "weights":
        nn.init.zeros_(convs[1].weight)
        nn.init.zeros_(convs[1].bias)
    else:
        nn.init.constant_(convs[1].bias, -100.0)
    start = ien.start_equivariant(net, "rot4", feature_groups, torch.rand(2, 1, 11, 11))
    found = [(start.layers[name].before, start.layers[name].after) for name in ("0", "2", "5")]
    assert found == [("1", specs[0]), (specs[0], specs[1]), (specs[1], specs[0])]
