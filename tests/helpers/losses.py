"""Small nets and images, and the paper's loss as NumPy loops written from its equations."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

import ien
from ien.groups.members import member_table
from tests.helpers.tied import Net

R4, R8, D4 = ien.rotation(4), ien.rotation(8), ien.rotation(4) * ien.reflection()


def net(channels: int = 8, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two layers, '1' and '3', whose maps have 7×7 and 5×5 pixels for 9×9 images."""
    layers = nn.Conv2d(1, channels, 3), nn.ELU(), nn.Conv2d(channels, channels, 3), nn.ELU()
    return nn.Sequential(*layers).to(dtype)


def images(n: int = 5, size: int = 9, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, 1, size, size, dtype=dtype)


def numpy_pool(h: np.ndarray, mix: dict[int, int]) -> np.ndarray:
    """Max over consecutive channels; ``mix`` is size → number of feature groups, block after block."""
    pooled, channel = [], 0
    for size, count in mix.items():
        for _ in range(count):
            pooled.append(np.max([h[:, channel + k] for k in range(size)], axis=0))
            channel += size
    assert channel == h.shape[1]
    return np.stack(pooled, axis=1)


def numpy_d4(h: np.ndarray, element: int) -> np.ndarray:
    """Element 2k + f of rot4xflip: flip left-right if f, then k quarter turns."""
    turns, flipped = divmod(element, 2)
    return np.rot90(h[..., ::-1] if flipped else h, turns, axes=(-2, -1))


def paper_loss(
    model: nn.Sequential, x: Tensor, betas: dict[str, float], mix: dict[int, int], elements
) -> float:
    """Eq. 7 as a loop: Σ over layers of β times the mean over images and elements of the squared error."""

    def maps(z: Tensor) -> dict[str, np.ndarray]:
        found = {}
        for name, layer in model.named_children():
            z = layer(z)
            found[name] = numpy_pool(z.detach().numpy(), mix)
        return found

    total = 0.0
    for name, beta in betas.items():
        errors = []
        for element in elements:
            for image in x:
                turned = torch.from_numpy(numpy_d4(image.numpy(), element).copy())
                h, h_g = maps(image[None])[name], maps(turned[None])[name]
                errors.append(np.mean((h_g - numpy_d4(h, element)) ** 2))
        total += beta * np.mean(errors)
    return float(total)


def symmetrised(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            w = module.weight.data
            turns = [torch.rot90(v, k, (-2, -1)) for v in (w, w.flip(-1)) for k in range(4)]
            module.weight.data = torch.stack(turns).mean(0)
    return model


def with_weight(model, weight, objective, x, g) -> Tensor:
    """The loss as a function of the weight of layer '2'."""

    def forward(whole, z):
        return torch.func.functional_call(whole.model, {"2.weight": weight}, (z,))

    renamed = copy.copy(objective)
    renamed.layers = {f"model.{name}": beta for name, beta in objective.layers.items()}
    renamed.feature_groups = {f"model.{name}": spec for name, spec in objective.feature_groups.items()}
    return renamed(Net(forward, model=model), x, g=g).loss


def loop_permute(h: Tensor, g: Tensor, group: ien.Group, mix: list[tuple[int, int]]) -> Tensor:
    """Image by image, feature group by feature group, member by member; ``mix`` are (size, number)."""
    result = torch.full_like(h, torch.nan)
    for image in range(len(h)):
        first = 0
        for size, number in mix:
            for _ in range(number):
                for m in range(size):
                    result[image, first + m] = h[image, first + int(member_table(group, size)[g[image], m])]
                first += size
        assert first == h.shape[1]
    return result


CASES = [
    (R4, 4, [(4, 3)]),
    (R4, 2, [(2, 5)]),
    (R4, "4-2-1", [(4, 4), (2, 2), (1, 2)]),
    (R8, "8-4-2-1", [(8, 4), (4, 2), (2, 1), (1, 1)]),
    (D4, 8, [(8, 2)]),
    (D4, {8: 1, 1: 2}, [(8, 1), (1, 2)]),
    (R4, 1, [(1, 5)]),
]
