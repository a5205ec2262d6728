"""Small nets for the doctor, and whether they are exact, measured with symmetric kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ien import Diagnosis, doctor

CHANNELS = 4


class Fn(nn.Module):
    """A function as a module; with the module ``inner`` it takes that too."""

    def __init__(self, function: Callable[..., Any], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Any:
        return self.function(x) if self.inner is None else self.function(x, self.inner)


def conv(kernel: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, kernel, **options)


def strided(channels: int = CHANNELS) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, stride=2, padding=1)


def transposed(*options: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(CHANNELS, CHANNELS, *options)


def resize(**options: Any) -> nn.Module:
    return Fn(lambda x: F.interpolate(x, **options))


def net(*layers: nn.Module | Callable[[Tensor], Any]) -> nn.Sequential:
    """Layers, or functions, after a convolution, so that what goes into them is not symmetric."""
    first = [nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.GELU()]
    return nn.Sequential(*first, *(each if isinstance(each, nn.Module) else Fn(each) for each in layers))


def unet() -> nn.Module:
    """Half the resolution and back, joined to what was there."""
    return net(lambda x: torch.cat([x, F.interpolate(F.max_pool2d(x, 2), x.shape[2:])], 1)[:, 2:6], conv())


def symmetrised(model: nn.Module) -> nn.Module:
    """A copy in float64 with random weights and kernels averaged over all turns and flips."""
    model = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
                tensor.copy_(noise.square() + 0.5 if "running_var" in name else noise)
            if tensor.ndim == 4 and tensor.shape[-1] == tensor.shape[-2] > 1:
                rotated = [tensor.rot90(k, (-2, -1)) for k in range(4)]
                tensor.copy_(torch.stack([*rotated, *(each.flip(-1) for each in rotated)]).mean(0))
    return model


def measured_exact(model: nn.Module, size: int) -> bool:
    """Whether the model commutes with quarter turns and flips once its kernels are symmetric."""
    return commutes(symmetrised(model), size)


def commutes(model: nn.Module, size: int) -> bool:
    """Whether f(g x) is g f(x), or f(x) where the output is no map, for all eight g."""
    x = torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        y = model(x)
        assert not torch.allclose(y[0], y[1]), "the output says nothing of the input"
        for turns in range(4):
            for flipped, expected in ((x, y), (x.flip(-1), y.flip(-1) if y.ndim == 4 else y)):
                got = model(flipped.rot90(turns, (-2, -1)))
                expected = expected.rot90(turns, (-2, -1)) if y.ndim == 4 else expected
                if got.shape != expected.shape:
                    return False
                if float((got - expected).square().mean()) > 1e-20 * float(y.square().mean()):
                    return False
    return True


def diagnosed(model: nn.Module, size: int, channels: int = 3) -> Diagnosis:
    """The diagnosis without a search for other sizes, which has tests of its own."""
    with mock.patch("ien.geometry.sizes.MAX_OPERATIONS", 1):
        return doctor(model, (channels, size, size))


def assert_verdict_is_measured(model: nn.Module, size: int, may_be_unknown: bool = False) -> None:
    """The doctor says exact if, and only if, symmetric kernels measure no error."""
    found = diagnosed(model, size)
    assert found.exact == measured_exact(model, size), str(found)
    assert found.exact == (not found.findings) == (size in found.exact_sizes)
    assert may_be_unknown or all(finding.kind != "unknown" for finding in found.findings), str(found)
