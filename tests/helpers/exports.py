"""What holds of every plain network that a steerable one is exported to."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_export(net: nn.Module, plain: nn.Module, like: nn.Module, x: Tensor) -> None:
    """It has the keys of a net ``like`` it, computes the same as ``net`` and has weights of its own.

    The weights of ``plain`` are 0 afterwards.
    """
    assert [(k, v.shape, v.dtype) for k, v in plain.state_dict().items()] == [
        (k, v.shape, v.dtype) for k, v in like.state_dict().items()
    ]
    with torch.no_grad():
        expected = net.eval()(x)
        assert (plain(x) - expected).abs().max() < 1e-5 * expected.abs().max()
        for parameter in plain.parameters():
            parameter.zero_()
        assert torch.equal(net(x), expected)  # the weights are the plain net's own
