"""The networks of the scale experiments: those of the published protocols, and their twins."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.models import channel_share, create
from ien.models.normalize import Normalize
from ien.models.resnet18 import Block


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def settle(net: nn.Module) -> nn.Module:
    """Statistics that are not 0 and 1, so that a norm in the wrong place is seen."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


@pytest.mark.parametrize("size", [28, 56])
@pytest.mark.parametrize("members", [1, 3])
def test_the_digit_net_is_the_published_sequence_of_layers(size: int, members: int) -> None:
    torch.manual_seed(size + members)
    net = settle(create("cnn3", feature_groups=members, width=1 / 4, size=size))
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


def test_the_digit_net_has_the_published_number_of_parameters_and_its_twin_seven_times_as_many() -> None:
    plain, twin, larger = (create("cnn3", feature_groups=n) for n in (1, 3, 4))
    assert count(plain) == 494_549
    channels = [[net.get_submodule(tap)[0].out_channels for tap in net.taps] for net in (plain, twin, larger)]
    assert channels == [[32, 63, 95], [96, 189, 285], [128, 252, 380]]
    assert 7 < count(twin) / count(plain) < 7.5
    with pytest.raises(ValueError, match="size is 28, or 56 to double the image first; got 32"):
        create("cnn3", size=32)


def test_the_wide_net_is_wrn_16_8() -> None:
    with torch.device("meta"):
        net, twin = create("wide-resnet"), create("wide-resnet", feature_groups=3)
    assert count(net) == 10_961_370  # 10.96 M
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [conv.kernel_size[0] for conv in convs].count(3) == 13 and len(convs) == 16  # three shortcuts
    blocks = [m for m in net.modules() if isinstance(m, Block)]
    assert [block.conv1.out_channels for block in blocks] == [128, 128, 256, 256, 512, 512]
    assert [block.conv1.stride[0] for block in blocks] == [1, 1, 2, 1, 2, 1]
    assert {block.dropout for block in blocks} == {0.3}
    assert [block.conv1.out_channels for block in twin.modules() if isinstance(block, Block)][::2] == [
        384,
        768,
        1536,
    ]
    assert 8.9 < count(twin) / count(net) <= 9


def test_a_block_is_two_convolutions_after_norm_and_relu_and_drops_between_them() -> None:
    torch.manual_seed(0)
    net = settle(create("wide-resnet", width=1 / 16))
    block, x = net.layer2[0], torch.randn(2, 8, 9, 9)
    active = F.relu(block.norm1(x))
    h = F.conv2d(active, block.conv1.weight, stride=2, padding=1)
    h = F.conv2d(F.relu(block.norm2(h)), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), h + F.conv2d(active, block.shortcut.weight, stride=2))
    block.dropout = 1.0
    block.train()
    block.norm1.eval()
    torch.testing.assert_close(block(x), F.conv2d(active, block.shortcut.weight, stride=2))


def test_the_centre_of_an_image_stays_in_the_centre_of_all_maps() -> None:
    net = create("wide-resnet", feature_groups=3, width=1 / 16)
    assert all(ien.doctor(net, (3, size, size)).exact for size in (96, 32))


@pytest.mark.parametrize("in_channels", [1, 3, 4])
def test_other_numbers_of_channels_are_normalised_too(in_channels: int) -> None:
    for name in ("cnn3", "wide-resnet"):
        net = create(name, width=1 / 16, in_channels=in_channels)
        assert net(torch.rand(2, in_channels, 28, 28)).shape == (2, 10)


def test_images_of_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"for images of 3 channels \(in_channels\); got \(2, 1, 24, 24\)"):
        create("wide-resnet", width=1 / 16)(torch.rand(2, 1, 24, 24))


def test_the_wide_net_starts_as_published_and_only_its_stages_are_narrowed() -> None:
    torch.manual_seed(0)
    for name, stem in (("wide-resnet", 16), ("ss-cnn-wrn", 11)):
        net = (create if name == "wide-resnet" else ien.baselines.create)(name, width=1 / 4)
        shortcut = net.layer3[0].shortcut.weight
        assert shortcut.std().item() == pytest.approx((2 / len(shortcut)) ** 0.5, rel=0.05)
        assert net.layer1[0].norm1.num_features == stem
    conv = create("wide-resnet", width=1 / 4).layer3[1].conv2.weight
    assert conv.std().item() == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.05)


def test_normalisation_is_no_weight_and_survives_the_meta_device() -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    with torch.device("meta"):
        layer = Normalize(mean, std)
    x = torch.rand(2, 3, 4, 4)
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(layer(x), expected)
    assert layer.state_dict() == {}


@pytest.mark.parametrize("name", ["cnn3", "wide-resnet"])
def test_every_parameter_learns_and_the_taps_fit_the_feature_groups(name: str) -> None:
    net = create(name, feature_groups=3, width=1 / 16)
    x = torch.rand(4, 1 if name == "cnn3" else 3, 28, 28)
    objective = ien.EquivarianceLoss("scale0.7,0.84", net.taps, net.feature_groups)
    out = objective(net, x, generator=torch.Generator().manual_seed(0))
    (out.output.square().mean() + out.loss).backward()
    assert len(out.terms) == 3 and all(term.item() > 0 for term in out.terms.values())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert channel_share(name, 3) == 1
