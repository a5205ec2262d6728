"""The steerable twins of resnet18 and vgg: exact, as large as the paper's, plain nets once exported."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien import baselines, models
from ien.baselines.steerable_layers import SteerableConv2d

from ..helpers.exports import check_export

pytest.importorskip("e2cnn")

pytestmark = pytest.mark.usefixtures("one_thread")

GROUPS = ("rot4", "rot8", "rot4xflip")
NETS = ("resnet18", "vgg")
SIZES = [("resnet18", 17), ("resnet18", 16), ("vgg", 32)]  # 16 is enlarged to 17
TYPES = {"resnet18": models.ResNet18, "vgg": models.VGG}


def twin(name: str, group: str, **options: object) -> nn.Module:
    """Narrow, with statistics, affine parameters and biases far from where they start."""
    net = baselines.create(f"e2cnn-{name}", group=group, **({"width": 1 / 12, "num_classes": 7} | options))
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm3d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
        elif isinstance(layer, SteerableConv2d) and layer.bias is not None:
            layer.bias.data.uniform_(-1, 1)
    return net.eval()


def images(size: int, count: int = 3) -> Tensor:
    return torch.rand(count, 3, size, size, dtype=torch.float64)


def exact(report: ien.Report) -> dict[str, list[float]]:
    """Errors of each layer under the elements that permute pixels."""
    odd = ("45°", "135°", "225°", "315°")
    return {
        name: [abs(error) for label, error in layer.per_element.items() if label not in odd]
        for name, layer in report.layers.items()
    }


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("name", "size"), SIZES)
def test_twin_and_export_commute_with_quarter_turns_and_flips(name, size, group) -> None:
    net = twin(name, group).double()
    g, x = ien.group("rot4" if group == "rot8" else group), images(size)
    for model in (net, net.export()):
        report = ien.measure(model, x, g, net.taps, net.feature_groups)
        errors = exact(report)
        assert tuple(errors) == net.taps and all(len(found) == len(g) - 1 for found in errors.values())
        assert all(error < 1e-20 for found in errors.values() for error in found)
        outputs = [model(g.act(x, torch.full((len(x),), i))) for i in range(len(g))]
        assert all((turned - outputs[0]).abs().max() < 1e-10 * outputs[0].abs().max() for turned in outputs)
        assert outputs[0].std(0).min() > 0  # it does not ignore the images


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("name", "size"), SIZES[::2])
def test_an_exact_element_permutes_the_members_of_each_field_alike(name, size, group) -> None:
    net, g = twin(name, group).double(), ien.group("rot4" if group == "rot8" else group)
    members, x = len(ien.group(group)), images(size, 1)
    for i in range(1, len(g)):
        one = torch.tensor([i])
        with torch.no_grad(), ien.capture(net, net.taps) as features:
            net(torch.cat([x, g.act(x, one)]))
        h, turned = features[net.taps[1]].chunk(2)
        h = g.act_on_features(h, one).unflatten(1, (-1, members))  # (1, fields, members, H, W)
        turned = turned.unflatten(1, (-1, members))
        apart = (turned[:, :, :, None] - h[:, :, None]).abs().amax((0, 1, 4, 5))  # (members, members)
        best = apart.min(1)
        assert best.values.max() < 1e-10 * h.abs().max()
        assert sorted(best.indices.tolist()) == list(range(members)) != best.indices.tolist()


@pytest.mark.parametrize("name", NETS)
def test_eighth_turns_are_finite_and_not_exact_where_quarter_turns_are(name) -> None:
    net = twin(name, "rot8").double()
    taps = net.taps[:3]  # later maps are too small for a pixel that 45° leaves valid
    report = ien.measure(net, images(33 if name == "resnet18" else 32), "rot8", taps, net.feature_groups)
    assert all(1e-3 < layer.per_element["45°"] < 2 for layer in report.layers.values())
    assert all(error < 1e-20 for found in exact(report).values() for error in found)


@pytest.mark.parametrize("name", NETS)
def test_the_ruler_finds_rotations_alone_far_from_flips_and_a_plain_net_far_from_both(name) -> None:
    net, x = twin(name, "rot4").double(), images(17 if name == "resnet18" else 16)
    flips = ien.measure(net, x, "flip", net.taps[:2], 4)
    assert all(layer.relative > 1e-3 for layer in flips.layers.values())
    plain = models.create(name, feature_groups=4, width=1 / 12).double()
    turns = ien.measure(plain, x, "rot4", net.taps[:2], 4)
    assert all(layer.relative > 1e-3 for layer in turns.layers.values())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", NETS)
def test_the_exported_net_is_the_plain_class_with_its_keys_and_the_same_outputs(name, group) -> None:
    net = twin(name, group)
    rng = torch.get_rng_state()
    plain = net.train().export()
    assert torch.equal(torch.get_rng_state(), rng) and net.training and not plain.training
    assert type(plain) is TYPES[name] and plain.taps == net.taps
    like = models.create(name, feature_groups=net.feature_groups, width=1 / 12, num_classes=7)
    check_export(net, plain, like, images(16).float())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", NETS)
def test_every_parameter_gets_a_gradient_in_training_and_the_loss_falls(name, group) -> None:
    net = baselines.create(f"e2cnn-{name}", group=group, width=1 / 12, num_classes=3).train()
    x, y = images(16 if name == "vgg" else 9, 9).float(), torch.arange(9) % 3
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=3e-3), []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    dead = {n for n, p in net.named_parameters() if not p.grad.any()}
    assert not dead - {n for n, _ in net.named_parameters() if n.endswith(".bias")}  # before a BatchNorm
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "group", "fields", "millions"),
    [
        ("resnet18", "rot4", (34, 68, 136, 272), 11.250),
        ("resnet18", "rot8", (24, 48, 96, 192), 11.202),
        ("resnet18", "rot4xflip", (24, 48, 96, 192), 11.202),
        ("vgg", "rot4", (36, 72, 144, 144, 288, 288, 288, 288), 8.180),
        ("vgg", "rot8", (25, 50, 100, 100, 200, 200, 200, 200), 7.813),
        ("vgg", "rot4xflip", (25, 50, 100, 100, 200, 200, 200, 200), 7.813),
    ],
)
def test_full_width_has_the_fields_and_parameters_of_the_paper(name, group, fields, millions) -> None:
    with torch.device("meta"):
        net = baselines.create(f"e2cnn-{name}", group=group)
        base = models.create(name, feature_groups=1)
    convs = [m for m in net.modules() if isinstance(m, SteerableConv2d)]
    ends = [net.get_submodule(tap)[1].conv2 for tap in net.taps] if name == "resnet18" else convs
    assert tuple(len(conv.weight) for conv in ends) == fields
    biases = sum(conv.bias.numel() for conv in convs if conv.bias is not None)
    count, of_base = (sum(p.numel() for p in model.parameters()) for model in (net, base))
    assert round((count - biases) / 1e6, 3) == millions  # the paper's widths were matched without the biases
    assert (biases > 0) == (name == "resnet18")
    assert name == "vgg" or abs(count / of_base - 1) < 0.005


@pytest.mark.parametrize("name", NETS)
def test_norms_keep_the_momentum_of_the_plain_net_and_have_two_parameters_for_each_field(name) -> None:
    net = twin(name, "rot4")
    ours = [m for m in net.modules() if isinstance(m, nn.BatchNorm3d)]
    theirs = [m for m in net.export().modules() if isinstance(m, nn.BatchNorm2d)]
    assert [(m.momentum, m.eps, m.num_features * 4) for m in ours] == [
        (m.momentum, m.eps, m.num_features) for m in theirs
    ]
    assert all(sum(p.numel() for p in m.parameters()) == 2 * m.num_features for m in ours)
    assert name == "vgg" or ours[-1].momentum == 0.9


def test_full_width_is_built_in_seconds() -> None:
    start = time.process_time()
    baselines.create("e2cnn-resnet18", group="rot8")
    assert time.process_time() - start < 10  # the library's own initialisation takes minutes


def test_the_same_seed_gives_the_same_weights_and_another_gives_others() -> None:
    states = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        states.append(baselines.create("e2cnn-resnet18", width=1 / 12).state_dict())
    first, again, other = states
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


@pytest.mark.parametrize("name", NETS)
def test_orders_without_widths_and_mixes_are_refused(name) -> None:
    with pytest.raises(ValueError, match=f"{name} has widths for feature groups whose largest size is 1, 4"):
        baselines.create(f"e2cnn-{name}", group="rot6")
    with pytest.raises(ValueError, match="takes a group, such as rot4, and its feature groups have one size"):
        baselines.create(f"e2cnn-{name}", group="4-2-1")
    with pytest.raises(
        ValueError, match=r"rotations \(rot4, rot8\), also with flips \(rot4xflip\); got flip"
    ):
        baselines.create(f"e2cnn-{name}", group="flip")
    with pytest.raises(ValueError, match="cannot read group 'cyclic'"):
        baselines.create(f"e2cnn-{name}", group="cyclic")
