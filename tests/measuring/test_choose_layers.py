"""Without names, measure takes the layers that a person would name."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import ien
from ien.measuring.choose_layers import choose_layers
from tests.helpers.tied import Net

IN_STYLE = OrderedDict(
    conv=nn.Conv2d(1, 4, 3, padding=1),
    norm=nn.BatchNorm2d(4),
    relu=nn.ReLU(inplace=True),  # writes over the map of norm
    stage=nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)),
    pool=nn.AdaptiveAvgPool2d(1),
    flatten=nn.Flatten(),
    head=nn.Linear(8, 3),
)
WRAPPED = ["1.conv", "1.relu", "1.stage", "1.pool"]
DEEP = OrderedDict(body=nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()), head=nn.LazyLinear(2))
PLAIN = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
TWICE = nn.Conv2d(4, 4, 3, padding=1)


BODY = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU())
# returns a map that none of its children returned
SEGMENTER = Net(
    lambda net, x: nn.functional.interpolate(net.body(x), x.shape[-2:], mode="bilinear"), body=BODY
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(IN_STYLE), ["conv", "relu", "stage", "pool"]),
        (nn.Sequential(PLAIN), ["0.0", "0.1"]),
        (nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Sequential(IN_STYLE)), WRAPPED),
        (nn.Sequential(nn.BatchNorm2d(1), PLAIN), ["0", "1"]),
        (nn.Sequential(nn.Sequential(PLAIN)), ["0.0.0", "0.0.1"]),
        (nn.Sequential(nn.Sequential(DEEP)), ["0.body.1"]),
        (SEGMENTER, ["body.0", "body.1", ""]),
        (nn.Conv2d(1, 4, 3), [""]),
        (nn.Sequential(nn.Conv2d(1, 4, 1), TWICE, TWICE, nn.ReLU()), ["0", "3"]),
    ],
)
def test_direct_children_and_the_last_map_are_chosen(model, expected) -> None:
    report = ien.measure(model, torch.rand(2, 1, 8, 8), "rot4")
    assert list(report.layers) == expected and report.chosen
    assert "direct children" in str(report)
    named = ien.measure(model, torch.rand(2, 1, 8, 8), "rot4", expected)
    assert not named.chosen and "direct children" not in str(named)


def test_what_has_no_map_to_capture_is_told_why() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(ValueError, match="no layer of the model returns a map"):
        choose_layers(flat, torch.rand(2, 4, 4, 4))
    with pytest.raises(ValueError, match=r"more than once .*\(0\): use a separate module for each call"):
        choose_layers(nn.Sequential(TWICE, TWICE, nn.Flatten()), torch.rand(2, 4, 4, 4))
    with pytest.raises(TypeError, match=r"layer '1' returned a tensor of shape \(2, 2\).*\(B, C, H, W\)"):
        ien.measure(flat, torch.rand(2, 1, 8, 8), "rot4", ["1"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import of its compiler
def test_a_compiled_model_is_named_as_such() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    in_place = model()
    in_place.compile(backend="eager")
    for compiled in (torch.compile(model(), backend="eager"), in_place):
        with pytest.raises(ValueError, match=r"the model is compiled.*from before torch\.compile"):
            ien.measure(compiled, torch.rand(2, 1, 8, 8), "rot4")
    by_layer = model()
    by_layer[0] = torch.compile(by_layer[0], backend="eager")
    assert list(ien.measure(by_layer, torch.rand(2, 1, 8, 8), "rot4").layers) == ["0", "1"]
