"""Norms that pool statistics over members, against the formula; tied weights that are kept in eval mode."""

import copy

import pytest
import torch
from torch import Tensor, nn

import ien
from ien.tying.parametrized import TiedNorm, TiedWeight, tie_norm, untie_norm
from ien.tying.projection import Tie

BLOCKS = [((4, 8),), ((1, 6),), ((4, 8), (2, 4), (1, 3)), ((3, 6), (2, 6))]


def normalised(x: Tensor, blocks: object, weight: Tensor, bias: Tensor) -> Tensor:
    """Each feature group minus its mean, over its standard deviation, over batch, members and pixels."""
    result = torch.empty_like(x)
    first, group = 0, 0
    for size, count in blocks:  # type: ignore[attr-defined]
        for start in range(first, first + count, size):
            part = x[:, start : start + size]
            spread = (part.var(unbiased=False) + 1e-5).sqrt()
            result[:, start : start + size] = (part - part.mean()) / spread * weight[group] + bias[group]
            group += 1
        first += count
    return result


def tied_norm(norm: nn.Module, blocks: object) -> nn.Module:
    """Tie a norm, and give each feature group a weight and a bias of its own."""
    tie_norm(norm, blocks)  # type: ignore[arg-type]
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias)
    return norm


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_a_tied_norm_pools_statistics_over_members(blocks, layout) -> None:
    channels = sum(count for _, count in blocks)
    x = torch.randn(3, channels, 5, 4).mul(2).add(1).contiguous(memory_format=layout)
    norm = tied_norm(nn.BatchNorm2d(channels), blocks)
    output = norm(x)
    torch.testing.assert_close(output, normalised(x, blocks, norm.weight, norm.bias))
    if len(blocks) == 1:  # members that are repeated are copied
        assert output.is_contiguous(memory_format=layout)
    assert int(norm.num_batches_tracked) == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_tied_instance_norm_normalises_each_image_by_itself(layout) -> None:
    x = torch.randn(3, 8, 5, 4).contiguous(memory_format=layout)
    norm = tied_norm(nn.InstanceNorm2d(8, affine=True, track_running_stats=True), BLOCKS[0])
    output = norm(x)
    for i in range(len(x)):
        expected = normalised(x[i : i + 1], BLOCKS[0], norm.weight, norm.bias)
        torch.testing.assert_close(output[i : i + 1], expected)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_vectors_are_normalised_too(blocks) -> None:
    channels = sum(count for _, count in blocks)
    x = torch.randn(16, channels)
    norm = tied_norm(nn.BatchNorm1d(channels), blocks)
    torch.testing.assert_close(norm(x), normalised(x, blocks, norm.weight, norm.bias))


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("norm_class", [nn.BatchNorm2d, nn.SyncBatchNorm])
def test_an_untied_norm_computes_the_same_to_the_bit(norm_class, blocks) -> None:
    channels = sum(count for _, count in blocks)
    plain = norm_class(channels)
    norm = tied_norm(copy.deepcopy(plain), blocks)
    if norm_class is nn.BatchNorm2d:
        norm(torch.randn(8, channels, 3, 3))  # statistics
    assert isinstance(norm, TiedNorm) and isinstance(norm, norm_class)
    x = torch.randn(2, channels, 3, 3)
    expected = norm.eval()(x)
    untie_norm(norm)
    assert type(norm) is norm_class and repr(norm) == repr(plain)
    assert vars(norm).keys() == vars(plain).keys()
    assert {k: v.shape for k, v in norm.state_dict().items()} == {
        k: v.shape for k, v in plain.state_dict().items()
    }
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=0)


def test_a_norm_of_another_class_keeps_what_it_adds() -> None:
    class NormAndReLU(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    norm = tied_norm(NormAndReLU(8), ((4, 8),))
    x = torch.randn(4, 8, 5, 5)
    torch.testing.assert_close(norm(x), normalised(x, ((4, 8),), norm.weight, norm.bias).relu())


def test_in_eval_mode_a_weight_is_computed_once() -> None:
    values = torch.randn(8, 4, 3, 3)
    weight = TiedWeight(Tie(ien.rotation(4), ((4, 8),), ((4, 4),)), values, ())
    numbers = nn.Parameter(weight.right_inverse(values))
    assert weight(numbers) is not weight(numbers)
    weight.eval()
    with torch.no_grad():
        kept = weight(numbers)
        assert weight(numbers) is kept
        numbers.add_(1)
        torch.testing.assert_close(weight(numbers), kept + 1)
    assert weight(numbers).requires_grad  # a model in eval mode may train


def test_matrices_keep_their_precision_through_half() -> None:
    values = torch.randn(8, 8, 5, 5, dtype=torch.float64)
    tie = Tie(ien.rotation(8), ((8, 8),), ((8, 8),), smooth=True)
    weight = TiedWeight(tie, values, ())
    numbers = weight.right_inverse(values)
    expected = weight(numbers)
    weight.half()
    assert weight(numbers.half()).dtype == torch.float16
    weight.double()
    torch.testing.assert_close(weight(numbers), expected, rtol=0, atol=0)


def test_gradients_do_not_outlive_the_shape_of_their_parameter() -> None:
    net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 2, 3))
    images = torch.rand(4, 1, 9, 9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for change in (lambda: ien.make_equivariant(net, "rot4", images), lambda: ien.make_plain(net)):
        loss = net(images).sum()  # still alive after the change, as in a notebook
        loss.backward()
        change()
        for parameter in net.parameters():
            assert parameter.grad is None or parameter.grad.shape == parameter.shape
        before = net[0].weight.detach().clone()
        net(images).square().sum().backward()
        optimizer.step()
        assert not torch.equal(net[0].weight, before)
