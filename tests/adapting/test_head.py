"""What the last layer of a classifier reads."""

from __future__ import annotations

import torch
from torch import nn

from ien.adapting.head import inputs_of, last_linear
from tests.adapting.test_adapt import images, sided


def test_the_last_layer_is_found_only_if_the_model_returns_what_it_returns() -> None:
    net, x = sided(), images(4)
    assert last_linear(net, x) == "5"
    assert last_linear(nn.Sequential(net, nn.Softmax(1)), x) is None
    assert last_linear(nn.Conv2d(3, 4, 3), x) is None
    with inputs_of(net, "5") as features:
        net(x)
    net(x)  # no hook is left
    (found,) = features
    assert torch.equal(found, net[:5](x))
