"""Parameters that could break a model as they train, and zeros that hide it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from tests.helpers.tied import Net, assert_refused, regular_error

pytestmark = pytest.mark.usefixtures("one_thread")


def residual(first, **others):
    """A block that adds nothing at first, because its last norm is small; it may add positions as well."""

    def forward(net, x):
        h = net.stem(x)
        inner = net.block[0](h)
        if "position" in others:
            inner = inner + net.position
        return F.relu(h + net.block[1](inner))

    block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
    nn.init.constant_(block[1].weight, first)
    return Net(forward, stem=nn.Conv2d(1, 8, 3), block=block, **others)


@pytest.mark.parametrize("first", [0.0, 1e-6])
def test_a_block_that_adds_nothing_yet_must_fit_what_it_is_added_to(first) -> None:
    net, x = residual(first), torch.rand(4, 1, 9, 9)
    message = "breaks rot4: .*, once these are no longer 0: 'block.1.weight'"
    assert_refused(message, net, "rot4", {"": 4, "block": 2}, x)
    start = ien.start_equivariant(net, "rot4", 4, x)
    assert start.untied == () and torch.equal(net.block[1].weight, torch.full((8,), first))


def test_gates_that_are_equal_yet_must_stay_equal_in_a_feature_group() -> None:
    def excited(net, x):
        h = net.stem(x)
        gates = torch.sigmoid(net.excite(F.relu(net.squeeze(h.mean((2, 3))))))
        return h * gates[:, :, None, None]

    net = Net(excited, stem=nn.Conv2d(1, 8, 3), squeeze=nn.Linear(8, 4), excite=nn.Linear(4, 8))
    nn.init.zeros_(net.excite.weight)
    nn.init.zeros_(net.excite.bias)
    x, target = torch.rand(4, 1, 9, 9), torch.rand(4, 8, 7, 7)
    assert_refused("once these are no longer 0: 'excite.weight'", net, "rot4", 4, x)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    ien.recommended(net, "rot4", {"": 4, "excite": 4}, x, optimizer)
    for _ in range(12):
        optimizer.zero_grad()
        F.mse_loss(net(x), target).backward()
        optimizer.step()
    assert net.excite.weight.abs().max() > 0.1 and regular_error(net, x, 4) < 1e-9


@pytest.mark.parametrize("first", [0.0, 1.0])
def test_an_untied_parameter_is_found_behind_zeros(first) -> None:
    net = residual(first, position=nn.Parameter(torch.zeros(8, 7, 7)))
    assert ien.start_equivariant(net, "rot4", 4, torch.rand(4, 1, 9, 9)).loose == ("position",)


def test_many_blocks_that_start_at_zero_are_no_reason_to_refuse() -> None:
    blocks = []
    for _ in range(48):
        first, last = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        nn.init.zeros_(last.weight)
        blocks.append(Net(lambda net, h: h + net.last(F.relu(net.first(h))), first=first, last=last))
    net = nn.Sequential(nn.Conv2d(1, 8, 3), *blocks)
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 7, 7))
    assert start.untied == () and not net[1].last.weight.any()


def test_parameters_are_untied_if_other_numbers_would_break_something() -> None:
    def joined(net, x):
        h = net.first(x)
        return net.join([h * net.weights[0], net.second(h) * net.weights[1]])

    def summed(net, maps):
        return sum((h * scale for h, scale in zip(maps, net.scales, strict=True)), torch.zeros(()))

    scales = nn.ParameterList([torch.ones(8, 1, 1) for _ in range(2)])
    net = Net(
        joined,
        first=nn.Conv2d(1, 8, 3),
        second=nn.Conv2d(8, 8, 3, padding=1),
        weights=nn.Parameter(torch.ones(2)),  # one for each path: cannot break anything
        join=Net(summed, scales=scales),  # per channel, in a module that gets no maps
        aside=nn.Parameter(torch.ones(8)),  # takes no part
    )
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 9, 9))
    assert start.untied == ("join.scales.0", "join.scales.1") and not start.unused
    torch.testing.assert_close([net.weights, scales[0]], [torch.ones(2), torch.ones(8, 1, 1)])
    assert regular_error(net, torch.rand(2, 1, 9, 9), 4) < 1e-10


@pytest.mark.parametrize(("shape", "tied"), [((8, 1, 1), True), ((1, 1, 1, 8), False)])
def test_numbers_along_the_sides_of_a_map_are_untied(shape, tied) -> None:
    along = Net(lambda net, h: h + net.numbers, numbers=nn.Parameter(torch.zeros(shape)))
    net = nn.Sequential(nn.Conv2d(1, 8, 3), along)  # maps with as many columns as channels
    start = ien.start_equivariant(net, "rot4", 4, torch.rand(2, 1, 10, 10))
    assert start.untied == (() if tied else ("1.numbers",))
    assert any(tie.name == "numbers" for tie in start.ties) == tied
