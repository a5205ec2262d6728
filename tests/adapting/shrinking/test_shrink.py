"""Members of feature groups that a trained model can do without, and models without them."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ien
from ien.adapting.shrinking.shrink import shrink
from ien.adapting.shrinking.worth import lead

BUILDERS = {
    "cnn6": (lambda: ien.models.cnn6(width=1 / 16), (1, 28, 28)),
    "cnn3": (lambda: ien.models.cnn3(4, width=1 / 16), (1, 28, 28)),
    "vgg": (lambda: ien.models.vgg(width=1 / 36), (3, 16, 16)),
    "resnet18": (lambda: ien.models.resnet18(width=1 / 17), (3, 17, 17)),
    "wide-resnet": (lambda: ien.models.wide_resnet(4, width=1 / 64), (3, 17, 17)),
    "unet": (lambda: ien.models.unet(width=1 / 8), (3, 16, 16)),
}


def seasoned(net):
    """Give norms statistics and weights as after training, all channels different."""
    draws = torch.Generator().manual_seed(3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.uniform_(-0.5, 0.5, generator=draws)
            module.running_var.uniform_(0.5, 2, generator=draws)
            module.weight.data.uniform_(0.5, 1.5, generator=draws)
            module.bias.data.uniform_(-0.5, 0.5, generator=draws)
    return net.eval()


def built(name):
    torch.manual_seed(0)
    build, shape = BUILDERS[name]
    net = seasoned(build())
    x = torch.rand(6, *shape)
    labels = torch.arange(6) % 2
    if name == "unet":
        labels = torch.randint(2, (6, *shape[1:]))
    return net, x, labels


def small_net():
    """Two convolutions of 8 and 16 channels, the group pool and a linear layer."""
    torch.manual_seed(1)
    return seasoned(
        nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ELU(),
            nn.Conv2d(8, 16, 3),
            nn.BatchNorm2d(16),
            nn.ELU(),
            ien.GroupPool(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
    )


def normed(h, norm):
    """BatchNorm in eval mode, written out."""
    mean, var = norm.running_mean.view(1, -1, 1, 1), norm.running_var.view(1, -1, 1, 1)
    scaled = (h - mean) / torch.sqrt(var + norm.eps)
    return scaled * norm.weight.view(1, -1, 1, 1) + norm.bias.view(1, -1, 1, 1)


def zeroed(h, kept):
    """Maps with 0 in the channels that are not kept."""
    masked = torch.zeros_like(h)
    for channel in kept.tolist():
        masked[:, channel] = h[:, channel]
    return masked


def masked_maximum(h, kept, size):
    """The maximum over the kept members of each feature group, the others being minus infinity."""
    pooled = []
    for first in range(0, h.shape[1], size):
        best = torch.full_like(h[:, 0], -math.inf)
        for channel in range(first, first + size):
            if channel in kept.tolist():
                best = torch.maximum(best, h[:, channel])
        pooled.append(best)
    return torch.stack(pooled, 1)


@pytest.mark.parametrize("name", BUILDERS)
def test_keeping_all_changes_nothing(name):
    net, x, _ = built(name)
    result = shrink(net, x, keep=1)
    assert torch.equal(result.model(x), net(x))
    assert result.parameters[0] == result.parameters[1] == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("budget", ["channels", "operations"])
@pytest.mark.parametrize("name", BUILDERS)
def test_every_model_of_ours_runs_smaller_and_trains(name, budget):
    net, x, labels = built(name)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    result = shrink(net, x, keep=0.6, labels=labels, budget=budget)
    measured = getattr(result, budget)
    assert measured[1] <= 0.6 * measured[0]
    assert result.parameters[1] == sum(p.numel() for p in result.model.parameters()) < result.parameters[0]
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])

    small = result.model.train()
    objective = ien.EquivarianceLoss("rot4", small.taps, small.feature_groups)
    out = objective(small, x)
    (F.cross_entropy(out.output[: len(x)], labels) + out.loss).backward()
    for parameter in small.parameters():
        assert parameter.grad is not None
    for module in [*net.modules(), *small.modules()]:
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_removing_is_zeroing_and_leaving_out_of_the_maximum():
    net = small_net()
    x = torch.rand(5, 2, 7, 7)
    result = shrink(net, x, keep=0.55, labels=torch.arange(5) % 3, update_norms=False)
    first, second = result.layers["0"].kept, result.layers["3"].kept
    assert 2 <= len(first) < 8 or 4 <= len(second) < 16

    h = zeroed(F.elu(normed(F.conv2d(x, net[0].weight, net[0].bias, padding=1), net[1])), first)
    h = F.elu(normed(F.conv2d(h, net[3].weight, net[3].bias), net[4]))
    pooled = masked_maximum(h, second, 4).mean((2, 3))
    wanted = F.linear(pooled, net[9].weight, net[9].bias)
    assert torch.allclose(result.model(x), wanted, atol=1e-5)
    assert not torch.allclose(net(x), wanted, atol=1e-3)


def test_layers_that_are_added_lose_the_same_channels():
    net, x, labels = built("resnet18")
    result = shrink(net, x, keep=0.5, labels=labels, update_norms=False)
    layer = result.layers["stem"]
    assert layer.layers == ("stem", "layer1.0.conv2", "layer1.1.conv2")

    # the first block and a half, written out with zeros wherever the space is read
    block, after = net.layer1[0], result.model.layer1[0]
    inside = result.layers["layer1.0.conv1"].kept
    total = F.conv2d(x, net.stem.weight, net.stem.bias, padding=1)
    active = zeroed(torch.relu(normed(total, block.norm1)), layer.kept)
    h = F.conv2d(active, block.conv1.weight, block.conv1.bias, padding=1)
    h = zeroed(torch.relu(normed(h, block.norm2)), inside)
    h = F.conv2d(h, block.conv2.weight, block.conv2.bias, padding=1) + total
    found = after(result.model.stem(x))
    assert torch.allclose(found, h[:, layer.kept], atol=1e-5)


def test_parameters_and_operations_by_hand():
    net = small_net()
    x = torch.rand(4, 2, 7, 7)
    result = shrink(net, x, keep=0.5, labels=torch.arange(4) % 3)
    first, second = len(result.layers["0"].kept), len(result.layers["3"].kept)
    assert first + second == 12 and result.channels == (24, 12)
    convolutions = first * (2 * 9 + 1) + second * (first * 9 + 1)
    norms = 2 * first + 2 * second
    assert result.parameters[1] == convolutions + norms + 4 * 3 + 3
    assert result.operations[1] == first * 2 * 9 * 49 + second * first * 9 * 25 + 4 * 3
    assert result.operations[0] == 8 * 2 * 9 * 49 + 16 * 8 * 9 * 25 + 4 * 3


@pytest.mark.parametrize("name", BUILDERS)
def test_operations_are_those_that_torch_counts(name):
    net, x, _ = built(name)
    result = shrink(net, x, keep=0.7)
    for model, operations in zip((net, result.model), result.operations, strict=True):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(x[:1])
        assert counter.get_total_flops() == 2 * operations


def test_lead_is_the_maximum_less_the_maximum_without():
    h = torch.randn(2, 11, 6)
    found = lead(h, ien.FeatureGroups.of("4-2-1"))
    groups = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10]]  # 4, 4, 2, 1
    for members in groups:
        for member in members:
            others = [channel for channel in members if channel != member]
            for image in range(2):
                for pixel in range(6):
                    values = h[image, :, pixel]
                    wanted = 0.0
                    if others:
                        highest = max(float(values[channel]) for channel in members)
                        wanted = highest - max(float(values[channel]) for channel in others)
                    assert abs(float(found[image, member, pixel]) - wanted) < 1e-6


def test_score_of_a_linear_reader_is_the_loss_without_the_channel():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8 * 9, 2)).double()
    x, labels = torch.rand(5, 1, 5, 5).double(), torch.randn(5, 2).double()

    def loss(output, wanted):
        return (output * wanted).sum(1).mean()

    result = shrink(net, x, labels=labels, loss=loss, batch_size=2)  # 2, 2 and 1 images
    h = net[0](x).detach()
    for channel in range(8):
        without = h.clone()
        without[:, channel] = 0
        change = ((net[2](h.flatten(1)) - net[2](without.flatten(1))) * labels).sum(1)
        assert abs(float(result.layers["0"].score[channel] - change.detach().abs().mean())) < 1e-12


def test_score_at_a_group_pool_counts_the_runner_up():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), ien.GroupPool(4), nn.Flatten(), nn.Linear(2 * 9, 2)).double()
    x, labels = torch.rand(5, 1, 5, 5).double(), torch.randn(5, 2).double()

    def loss(output, wanted):
        return (output * wanted).sum(1).mean()

    result = shrink(net, x, labels=labels, loss=loss)
    h = net[0](x).detach()
    for channel in range(8):
        kept = torch.tensor([other for other in range(8) if other != channel])
        change = (net[3](masked_maximum(h, torch.arange(8), 4).flatten(1)) * labels).sum(1)
        change = change - (net[3](masked_maximum(h, kept, 4).flatten(1)) * labels).sum(1)
        assert abs(float(result.layers["0"].score[channel] - change.detach().abs().mean())) < 1e-12


def test_readers_of_a_sum_count_together():
    """Two readers that cancel out: without the channel nothing changes."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.plus = nn.Conv2d(4, 1, 1, bias=False)
            self.minus = nn.Conv2d(4, 1, 1, bias=False)

        def forward(self, x):
            h = self.conv(x)
            return (self.plus(h) + self.minus(h)).mean((2, 3))

    torch.manual_seed(0)
    net = Twice().double()
    net.minus.weight.data[:, 1] = -net.plus.weight.data[:, 1]
    x = torch.rand(3, 1, 6, 6).double()
    result = shrink(net, x, keep=0.75, labels=torch.zeros(3), loss=lambda output, _: output.mean())
    assert float(result.layers["conv"].score[1]) < 1e-15
    assert result.layers["conv"].kept.tolist() == [0, 2, 3]
    assert torch.allclose(result.model(x), net(x))


def test_members_that_are_not_used_go_first():
    net = small_net()
    unused = [1, 2, 5]
    net[3].weight.data[:, unused] = 0
    x, labels = torch.rand(6, 2, 7, 7), torch.arange(6) % 3
    result = shrink(net, x, keep=21 / 24, labels=labels, rounds=1, update_norms=False)
    assert sorted(set(range(8)) - set(result.layers["0"].kept.tolist())) == unused
    assert torch.allclose(result.model(x), net(x), atol=1e-5)
    # 4 - 1 members stand first: the second feature group has more than the first
    assert result.layers["0"].kept.tolist() == [4, 6, 7, 0, 3]
    assert result.layers["0"].sizes == {3: 1, 2: 1}


def test_without_labels_members_that_never_win_go_first():
    net = small_net()
    losers = [0, 6, 13]
    net[4].bias.data[losers] = -50.0  # ELU leaves -1, below all others
    x = torch.rand(6, 2, 7, 7)
    result = shrink(net, x, feature_groups={"0": 1, "": 4}, keep=21 / 24, update_norms=False)
    layer = result.layers["3"]
    assert not layer.wins[losers].any() and not layer.score[losers].any()
    removed = sorted(set(range(16)) - set(layer.kept.tolist()))
    assert len(removed) == 3 and not layer.wins[removed].any()
    assert torch.allclose(result.model(x), net(x), atol=1e-5)


def test_wins_are_shares_of_pixels():
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 1))
    x = torch.randn(2, 1, 5, 5)
    h = net[0](x)
    wanted = torch.bincount(h.argmax(1).flatten(), minlength=4) / h[:, 0].numel()
    wins = shrink(net, x, keep=1).layers["0"].wins
    assert torch.allclose(wins, wanted.double())


def test_maps_of_nothing_have_no_winner():
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    net[0].weight.data.zero_()
    net[0].bias.data.fill_(-1.0)
    result = shrink(net, torch.rand(2, 1, 5, 5), keep=0.25)
    assert not result.layers["0"].wins.any()
    assert len(result.layers["0"].kept) == 1
    assert str(result).splitlines()[1].split() == ["0", "4", "1", "1", "of", "1", "4"]


def test_a_shrunk_model_can_be_shrunk_again_measured_saved_and_exported(tmp_path):
    net, x, labels = built("cnn6")
    once = shrink(net, x, keep=0.8, labels=labels)
    twice = shrink(once.model, x, once.feature_groups, keep=0.8, labels=labels)
    assert twice.channels[0] == once.channels[1]
    assert set(once.model.feature_groups) == set(net.taps)

    report = ien.measure(twice.model, x, "rot4", twice.model.taps, twice.model.feature_groups)
    assert list(report.layers) == list(net.taps)

    saved = io.BytesIO()
    torch.save(twice.model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    assert torch.equal(loaded(x), twice.model(x))

    exported = ien.export(twice.model, tmp_path / "small.pt2", x)
    assert exported.path.is_file()
    program = torch.export.load(exported.path).module()
    assert torch.allclose(program(x), twice.model(x), atol=1e-5)


def test_tied_models_are_made_plain_and_lose_exactness():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        ien.GroupPool(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    x = torch.rand(4, 1, 9, 9)
    ien.make_equivariant(net, "rot4", x)
    net.eval()
    labels = torch.arange(4) % 3
    small = shrink(net, x, keep=0.69, labels=labels).model
    again = shrink(ien.plain_copy(net), x, keep=0.69, labels=labels).model
    turned = torch.rot90(x, 1, (2, 3))
    assert torch.equal(small(x), again(x))
    assert torch.allclose(net(turned), net(x), atol=1e-5)
    assert not torch.allclose(small(turned), small(x), atol=1e-4)


class Gated(nn.Module):
    """Depthwise and gated blocks, concatenation, PReLU, a norm without numbers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.curve = nn.PReLU(8)
        self.squeeze = nn.Linear(8, 4)
        self.excite = nn.Linear(4, 8)
        self.beside = nn.Conv2d(3, 4, 1)
        self.norm = nn.InstanceNorm2d(12, affine=True)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        h = self.curve(self.deep(self.stem(x)))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(h.mean((2, 3))))))
        h = h * gate[:, :, None, None]
        h = torch.cat([self.beside(x), h], 1)
        return self.head(torch.relu(self.up(self.norm(h))))


def test_depthwise_gates_and_concatenation():
    torch.manual_seed(0)
    net = Gated().eval()
    net.norm.weight.data.uniform_()
    net.curve.weight.data.uniform_()
    x = torch.rand(3, 3, 8, 8)
    result = shrink(net, x, keep=0.6, labels=torch.zeros(3, 2, 16, 16), loss=F.mse_loss)
    small = result.model
    assert result.layers["stem"].layers == ("stem", "excite")
    kept = len(result.layers["stem"].kept)
    assert small.deep.groups == small.deep.in_channels == small.curve.num_parameters == kept
    assert small.excite.out_features == small.squeeze.in_features == kept
    assert result.whole == {"squeeze": "not maps", "head": "returned by the model"}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        small(x[:1])
    assert counter.get_total_flops() == 2 * result.operations[1]


def test_channels_that_cannot_be_cut_stay_and_are_named():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 1),
    )
    net.append(nn.Conv2d(8, 4, 1))
    result = shrink(net, torch.rand(2, 1, 9, 9), keep=0.5)
    assert list(result.layers) == ["4"]
    assert result.whole == {
        "0": "'1' has 2 conv groups",
        "1": "'1' has 2 conv groups",
        "2": "'3' is a GroupNorm with numbers of its own",
        "5": "returned by the model",
    }


def test_the_mode_of_each_module_is_kept():
    net = small_net().train()
    net[1].eval()
    small = shrink(net, torch.rand(2, 2, 7, 7), keep=0.7).model
    assert [module.training for module in small.modules()] == [module.training for module in net.modules()]
    assert net.training and not net[1].training


class Pooled(nn.Module):
    """A network that pools in its own code."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(ien.group_pool(self.conv(x), 4).mean((2, 3)))


class Scaled(nn.Module):
    """A network with a number for each channel in its own code."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3)
        self.scale = nn.Parameter(torch.ones(1, 8, 1, 1))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(self.body(x) * self.scale)


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (Pooled(), {}, "no layer has members to remove: 'conv' \\(read by 'head' in a way"),
        (Scaled(), {}, "'body' fails .*ien.GroupPool|after it, .* fails"),
        (nn.Sequential(nn.Conv2d(1, 6, 3), nn.Conv2d(6, 2, 1)), {}, "feature_groups={\"\": '4', '0': 1}"),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)), {"keep": 0}, "above 0 and up to 1"),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)), {"keep": 0.2}, "pass keep=0.251 or more"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)),
            {"budget": "time"},
            '"channels" or "operations"',
        ),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)), {"labels": torch.zeros(3)}, "3 labels for"),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)), {"feature_groups": 1}, "of size 1"),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten()), {}, "returned by the model"),
        (
            nn.Sequential(nn.Conv2d(1, 8, 3), ien.GroupPool(2), nn.Conv2d(4, 2, 1)),
            {},
            "pools feature groups 2",
        ),
    ],
)
def test_errors_name_the_layer_and_the_remedy(net, options, message):
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        shrink(net, torch.rand(2, 1, 7, 7), **options)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])
    for module in net.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_permuted_channels_are_noticed():
    """A shuffle of channels cannot be seen in shapes, only in what comes out."""

    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(1, 8, 3)
            self.head = nn.Conv2d(8, 2, 1)

        def forward(self, x):
            return self.head(self.body(x).flip(1))

    torch.manual_seed(0)
    with pytest.raises(ValueError, match="something else than with zeros"):
        shrink(Shuffled(), torch.rand(2, 1, 7, 7), keep=0.6)


def test_statistics_are_those_of_the_images():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    net[1].momentum = 0.3
    x = torch.rand(10, 1, 7, 7)
    small = shrink(net, x, keep=0.5, batch_size=5).model
    maps = [small[0](part) for part in x.split(5)]
    mean = (maps[0].mean((0, 2, 3)) + maps[1].mean((0, 2, 3))) / 2
    var = (maps[0].var((0, 2, 3)) + maps[1].var((0, 2, 3))) / 2
    assert torch.allclose(small[1].running_mean, mean, atol=1e-6)
    assert torch.allclose(small[1].running_var, var, atol=1e-6)
    assert small[1].momentum == 0.3 and small[1].training
    assert not net[1].running_mean.any()


def test_what_a_norm_takes_out_is_worth_nothing():
    """A channel that is the same everywhere: a batch norm behind its reader subtracts it."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Flatten()
    )
    net[0].weight.data[2] = 0
    net[0].bias.data[2] = 5.0
    x, labels = torch.rand(8, 1, 7, 7), torch.rand(8, 18)
    options = {"labels": labels, "loss": F.mse_loss, "feature_groups": {"0": 4, "": 1}, "batch_size": 8}
    net.train()(x)
    for _ in range(200):  # until the statistics are those of the images
        net(x)
    net.eval()
    result = shrink(net, x, keep=7 / 8, **options)
    assert result.layers["0"].kept.tolist() == [0, 1, 3]
    assert float(result.layers["0"].score[2]) < 1e-6
    assert torch.allclose(result.model(x), net(x), atol=1e-3)
    exact = shrink(net, x, keep=1, update_norms=False, **options)
    assert float(exact.layers["0"].score[2]) > 1e-3


def test_rounds_score_what_is_left():
    """Two members that do the same: the second is needed once the first has gone."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 1), ien.GroupPool(4), nn.Conv2d(1, 2, 1)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 1.0, -0.5, -1.0]).view(4, 1, 1, 1))
        net[0].bias.zero_()
        net[2].weight.fill_(1.0)
    x = torch.randn(4, 1, 6, 6).double()
    score = shrink(net, x, keep=1).layers["0"].score
    assert score[0] == score[1] == score[2] == 0 < score[3]  # twins hide each other's use
    assert shrink(net, x, keep=0.5, rounds=1).layers["0"].kept.tolist() == [2, 3]
    assert shrink(net, x, keep=0.5, rounds=4).layers["0"].kept.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            torch.tensor([0, 1, 97, 0]),
            r"output \(4, 3\) with labels torch.int64 \(4,\) from 0 to 97 \(.*out of",
        ),
        (torch.rand(4), r"output \(4, 3\) with labels torch.float32 \(4,\)"),
    ],
)
def test_labels_that_the_loss_refuses_are_named(labels, message):
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        ien.GroupPool(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2, 3),
    )
    with pytest.raises(ValueError, match=message):
        shrink(net, torch.rand(4, 1, 6, 6), 4, labels=labels)
