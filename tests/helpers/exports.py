"""What holds of networks that are exported: to plain ones, and to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
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


def run_onnx(path: Path, x: Tensor) -> np.ndarray:
    """What onnxruntime itself makes of images: the only output of a file, without our own wrapper."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"images": x.numpy()})
    return output


def quarter_turn_error(run: Callable[[Tensor], np.ndarray], x: Tensor, turns: int) -> float:
    """The relative error of scores or maps under quarter turns, in numpy alone."""
    upright, rotated = run(x), run(x.rot90(turns, (2, 3)).contiguous())
    expected = np.rot90(upright, turns, (2, 3)) if upright.ndim == 4 else upright
    return float(((rotated - expected) ** 2).mean() / upright.var())
