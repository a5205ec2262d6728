"""Parameters that could break a model as they train, and zeros that hide it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from tests.helpers.tied import assert_same_weights, regular_error, state

pytestmark = pytest.mark.usefixtures("one_thread")


class Residual(nn.Module):
    """A block that adds nothing at first, because its last norm is small."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        nn.init.constant_(self.block[1].weight, first)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return F.relu(h + self.block(h))


class Excited(nn.Module):
    """Squeeze-and-excitation whose last layer is 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze, self.excite = nn.Conv2d(1, 8, 3), nn.Linear(8, 4), nn.Linear(4, 8)
        for parameter in self.excite.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        weights = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3))))))
        return h * weights[:, :, None, None]


@pytest.mark.parametrize("first", [0.0, 1e-6])
def test_a_block_that_adds_nothing_yet_must_fit_what_it_is_added_to(first: float) -> None:
    net, x = Residual(first), torch.rand(4, 1, 9, 9)
    before = state(net)
    with pytest.raises(ValueError, match=r"breaks rot4: .*, once these are no longer 0: 'block.1.weight'"):
        ien.start_equivariant(net, "rot4", {"": 4, "block": 2}, x)
    assert_same_weights(net, before)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert start.untied == () and torch.equal(net.block[1].weight, before["block.1.weight"])


def test_gates_that_are_equal_yet_must_stay_equal_in_a_feature_group() -> None:
    net, x = Excited(), torch.rand(4, 1, 9, 9)
    with pytest.raises(ValueError, match=r"once these are no longer 0: 'excite.weight'"):
        ien.start_equivariant(net, "rot4", 4, x)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    ien.recommended(net, "rot4", {"": 4, "excite": 4}, x, optimizer)
    target = torch.rand(4, 8, 7, 7)
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(net(x), target).backward()
        optimizer.step()
    assert net.excite.weight.abs().max() > 0.1
    assert regular_error(net, x, 4) < 1e-9


class Placed(Residual):
    """The block adds a learned map of positions as well, which its norm hides."""

    def __init__(self, first: float) -> None:
        super().__init__(first)
        self.position = nn.Parameter(torch.zeros(8, 7, 7))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return F.relu(h + self.block[1](self.block[0](h) + self.position))


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_an_untied_parameter_is_found_behind_zeros(first: float) -> None:
    assert ien.start_equivariant(Placed(first), "rot4", 4, torch.rand(4, 1, 9, 9)).untied == ("position",)


def test_many_blocks_that_start_at_zero_are_no_reason_to_refuse() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
            nn.init.zeros_(self.last.weight)

        def forward(self, h: Tensor) -> Tensor:
            return h + self.last(F.relu(self.first(h)))

    net = nn.Sequential(nn.Conv2d(1, 16, 3), *(Block() for _ in range(48)))
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 7, 7))
    assert start.untied == () and not net[1].last.weight.any()


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(8, 1, 1) for _ in range(2)])

    def forward(self, maps: list[Tensor]) -> Tensor:
        return sum((h * scale for h, scale in zip(maps, self.scales, strict=True)), torch.zeros(()))


class Fused(nn.Module):
    """Two paths with one weight each, which cannot break anything, and scales for a list of maps, which can."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.weights = nn.Parameter(torch.ones(2))
        self.join = Join()
        self.aside = nn.Parameter(torch.ones(8))  # takes no part

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.join([h * self.weights[0], self.second(h) * self.weights[1]])


def test_parameters_are_untied_if_other_numbers_would_break_something() -> None:
    net, x = Fused(), torch.rand(2, 1, 9, 9)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert start.untied == ("join.scales.0", "join.scales.1") and not start.unused
    torch.testing.assert_close(net.weights, torch.ones(2))
    torch.testing.assert_close(net.join.scales[0], torch.ones(8, 1, 1))
    assert regular_error(net, x, 4) < 1e-10
