"""The three-convolution net of Scale-MNIST: the published layers and sizes."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from ien.models import create
from tests.helpers.nets import unsettled


@pytest.mark.parametrize("size", [28, 56])
@pytest.mark.parametrize("members", [1, 3])
def test_the_net_is_the_published_sequence_of_layers(size, members) -> None:
    net = unsettled(create("cnn3", feature_groups=members, width=1 / 4, size=size))
    x = torch.rand(3, 1, 28, 28)
    h = (x - 0.0607) / 0.2161
    if size == 56:
        h = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
    for conv, norm in ((net.conv1[0], net.norm1), (net.conv2[0], net.norm2)):
        h = norm(F.max_pool2d(F.relu(F.conv2d(h, conv.weight, conv.bias, padding=3)), 2))
    h = F.relu(F.conv2d(h, net.conv3[0].weight, net.conv3[0].bias, padding=3))
    h = h.view(len(x), -1, members, *h.shape[2:]).amax(2)
    h = net.norm3(F.max_pool2d(h, 4 if size == 28 else 8, padding=2))
    assert h.shape[2:] == (2, 2)
    first, norm, _, dropout, last = net.classifier
    scores = F.linear(F.relu(norm(F.linear(h.flatten(1), first.weight))), last.weight, last.bias)
    assert dropout.p == 0.7 and first.bias is None
    torch.testing.assert_close(net(x), scores)


@pytest.mark.parametrize("members", [1, 3, 4])
def test_channels_and_parameters_are_the_published_ones(members) -> None:
    net, channels = create("cnn3", feature_groups=members), [members * groups for groups in (32, 63, 95)]
    assert [net.get_submodule(tap)[0].out_channels for tap in net.taps] == channels
    expected = sum(49 * before * after + after for before, after in pairwise([1, *channels]))
    expected += 2 * (channels[0] + channels[1] + 95)  # BatchNorms
    expected += 4 * 95 * 256 + 2 * 256 + 256 * 10 + 10
    assert sum(parameter.numel() for parameter in net.parameters()) == expected
    assert members != 1 or expected == 494_549
