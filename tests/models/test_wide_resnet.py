"""WRN-16-8: the published layers, sizes and initial weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.models import create
from ien.models.resnet18 import Block
from tests.helpers.nets import unsettled


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_it_is_wrn_16_8() -> None:
    with torch.device("meta"):
        net, wider = create("wide-resnet"), create("wide-resnet", feature_groups=3)
    assert count(net) == 10_961_370  # 10.96 M
    convs = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert [conv.kernel_size[0] for conv in convs].count(3) == 13 and len(convs) == 16  # three shortcuts
    blocks = [layer for layer in net.modules() if isinstance(layer, Block)]
    assert [block.conv1.out_channels for block in blocks] == [128, 128, 256, 256, 512, 512]
    assert [block.conv1.stride[0] for block in blocks] == [1, 1, 2, 1, 2, 1]
    assert {block.dropout for block in blocks} == {0.3}
    widths = [block.conv1.out_channels for block in wider.modules() if isinstance(block, Block)]
    assert widths[::2] == [384, 768, 1536] and 8.9 < count(wider) / count(net) <= 9


def test_a_block_is_two_convolutions_after_norm_and_relu_with_dropout() -> None:
    net = unsettled(create("wide-resnet", width=1 / 16))
    block, x = net.layer2[0], torch.randn(2, 8, 9, 9)
    active = F.relu(block.norm1(x))
    h = F.conv2d(active, block.conv1.weight, stride=2, padding=1)
    h = F.conv2d(F.relu(block.norm2(h)), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), h + F.conv2d(active, block.shortcut.weight, stride=2))
    block.dropout = 1.0
    block.train()
    block.norm1.eval()
    torch.testing.assert_close(block(x), F.conv2d(active, block.shortcut.weight, stride=2))


@pytest.mark.parametrize(("name", "stem"), [("wide-resnet", 16), ("ss-cnn-wrn", 11)])
def test_weights_start_as_published_and_only_the_stages_are_narrowed(name, stem) -> None:
    net = (create if name == "wide-resnet" else ien.baselines.create)(name, width=1 / 4)
    shortcut = net.layer3[0].shortcut.weight
    assert shortcut.std().item() == pytest.approx((2 / len(shortcut)) ** 0.5, rel=0.05)
    assert net.layer1[0].norm1.num_features == stem
    if name == "wide-resnet":
        conv = net.layer3[1].conv2.weight
        assert conv.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.05)
