"""The steerable twins: exact, as large as the paper's, plain nets once exported."""

import copy
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien import baselines, models
from ien.baselines.steerable_layers import SteerableConv2d
from tests.helpers.exports import check_export

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = {"cnn6": 28, "resnet18": 17, "vgg": 32}
TYPES = {"cnn6": models.CNN6, "resnet18": models.ResNet18, "vgg": models.VGG}
NETS = [("cnn6", "rot4"), ("cnn6", "rot8"), ("cnn6", "rot4xflip")]
NETS += [("resnet18", "rot4"), ("resnet18", "rot4xflip"), ("vgg", "rot8"), ("vgg", "rot4xflip")]
NAMES = pytest.mark.parametrize("name", SIZES)
TWINS = pytest.mark.parametrize(("name", "group"), NETS)


def twin(name, group="rot4") -> nn.Module:
    """Narrow, with statistics, affine parameters and biases far from where they start."""
    net = baselines.create(f"e2cnn-{name}", group=group, width=1 / 12, num_classes=7)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm3d):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
        elif isinstance(layer, SteerableConv2d) and layer.bias is not None:
            layer.bias.data.uniform_(-1, 1)
    return net.eval()


def images(name, count=3, size=None):
    side = size or SIZES[name]
    return torch.rand(count, 1 if name == "cnn6" else 3, side, side, dtype=torch.float64)


def exact_errors(report) -> list[float]:
    """Of all layers under the elements that permute pixels."""
    odd = ("45°", "135°", "225°", "315°")
    errors = []
    for layer in report.layers.values():
        errors += [abs(error) for label, error in layer.per_element.items() if label not in odd]
    return errors


@pytest.mark.parametrize(
    ("name", "group", "size"), [(*net, None) for net in NETS] + [("resnet18", "rot8", 16)]
)
def test_twin_and_export_commute_with_quarter_turns_and_flips(name, group, size) -> None:
    net = twin(name, group).double()  # the ResNet enlarges 16 pixels to 17
    g, x = ien.group("rot4" if group == "rot8" else group), images(name, size=size)
    for model in (net, net.export()):
        errors = exact_errors(ien.measure(model, x, g, net.taps, net.feature_groups))
        assert len(errors) == len(net.taps) * (len(g) - 1) and max(errors) < 1e-20
        outputs = [model(g.act(x, torch.full((len(x),), i))) for i in range(len(g))]
        assert all((output - outputs[0]).abs().max() < 1e-10 * outputs[0].abs().max() for output in outputs)
        assert outputs[0].std(0).min() > 0  # it does not ignore the images


@TWINS
def test_an_exact_element_permutes_the_members_of_each_field_alike(name, group) -> None:
    net, g = twin(name, group).double(), ien.group("rot4" if group == "rot8" else group)
    members, x = len(ien.group(group)), images(name, 1)
    for i in range(1, len(g)):
        one = torch.tensor([i])
        with torch.no_grad(), ien.capture(net, net.taps) as features:
            net(torch.cat([x, g.act(x, one)]))
        h, h_g = features[net.taps[1]].chunk(2)
        h = g.act_on_features(h, one).unflatten(1, (-1, members))  # (1, fields, members, H, W)
        h_g = h_g.unflatten(1, (-1, members))
        apart = (h_g[:, :, :, None] - h[:, :, None]).abs().amax((0, 1, 4, 5))  # (members, members)
        best = apart.min(1)
        assert best.values.max() < 1e-10 * h.abs().max()
        assert sorted(best.indices.tolist()) == list(range(members)) != best.indices.tolist()
        if group == "rot4":  # a rotation by 90° i shifts the members by i
            assert best.indices.tolist() == [(m - i) % 4 for m in range(4)]


@NAMES
def test_eighth_turns_are_finite_and_not_exact_where_quarter_turns_are(name) -> None:
    net = twin(name, "rot8").double()
    taps = net.taps[:3]  # later maps are too small for a pixel that 45° leaves valid
    x = images(name, size=33 if name == "resnet18" else None)
    report = ien.measure(net, x, "rot8", taps, net.feature_groups)
    assert all(1e-3 < layer.per_element["45°"] < 2 for layer in report.layers.values())
    assert max(exact_errors(report)) < 1e-20


@NAMES
def test_rotations_alone_are_far_from_flips_and_a_plain_net_from_both(name) -> None:
    net, x = twin(name).double(), images(name)
    flips = ien.measure(net, x, "flip", net.taps[:2], 4)
    plain = models.create(name, feature_groups=4, width=1 / 12).double()
    rotations = ien.measure(plain, x, "rot4", net.taps[:2], 4)
    for report in (flips, rotations):
        assert all(layer.relative > 1e-3 for layer in report.layers.values())


@TWINS
def test_the_exported_net_is_the_plain_class_with_the_same_outputs(name, group) -> None:
    net = twin(name, group)
    rng = torch.get_rng_state()
    plain = net.train().export()
    assert torch.equal(torch.get_rng_state(), rng) and net.training and not plain.training
    assert type(plain) is TYPES[name] and plain.taps == net.taps
    like = models.create(name, feature_groups=net.feature_groups, width=1 / 12, num_classes=7)
    check_export(net, plain, like, images(name).float())


@TWINS
def test_every_parameter_gets_a_gradient_in_training_and_the_loss_falls(name, group) -> None:
    net = baselines.create(f"e2cnn-{name}", group=group, width=1 / 12, num_classes=3).train()
    x, y = images(name, 9, {"cnn6": 28, "vgg": 16, "resnet18": 9}[name]).float(), torch.arange(9) % 3
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
        ("cnn6", "rot4", (32, 48, 64, 64, 96, 128), 1.213),
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
    assert name != "resnet18" or abs(count / of_base - 1) < 0.005


@pytest.mark.parametrize(("width", "fields"), [(1, (32, 48, 64, 64, 96, 128)), (1 / 8, (4, 6, 8, 8, 12, 16))])
def test_parameters_follow_from_the_functions_of_each_basis(width, fields) -> None:
    count = fields[0] * 18  # 7×7: 18 functions from one channel to one field
    count += sum(a * b * 4 * 11 for a, b in pairwise(fields))  # 5×5: 11 for each member
    count += 2 * sum(fields)
    count += fields[-1] ** 2 + 3 * fields[-1] + 10 * fields[-1] + 10
    assert sum(p.numel() for p in baselines.steerable_cnn6(width=width).parameters()) == count


@NAMES
def test_norms_have_two_parameters_for_each_field_and_the_plain_momentum(name) -> None:
    net = twin(name)
    ours = [m for m in net.modules() if isinstance(m, nn.BatchNorm3d)]
    theirs = [m for m in net.export().modules() if isinstance(m, nn.BatchNorm2d)]
    expected = [(m.momentum, m.eps, m.num_features) for m in theirs]
    assert [(m.momentum, m.eps, m.num_features * 4) for m in ours] == expected
    assert all(sum(p.numel() for p in m.parameters()) == 2 * m.num_features for m in ours)
    assert name != "resnet18" or ours[-1].momentum == 0.9


def test_a_double_copy_and_channels_last_give_the_same() -> None:
    single, x = twin("cnn6"), images("cnn6")
    net = copy.deepcopy(single).double()
    expected = net(x)
    assert (single(x.float()) - expected).abs().max() < 1e-4 * expected.abs().max()
    assert twin("cnn6")(x.float()).dtype == torch.float32  # nets built before and after stay single
    there = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert (there - expected).abs().max() < 1e-12 * expected.abs().max()


@pytest.mark.slow
def test_building_and_running_says_nothing() -> None:
    code = (
        "import torch; from ien.baselines import create; net = create('e2cnn-cnn6', width=1 / 8); "
        "net(torch.rand(2, 1, 28, 28)).sum().backward(); net.export()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["resnet18", "vgg"])
def test_orders_without_widths_are_refused(name) -> None:
    with pytest.raises(
        ValueError, match=f"{name} has widths for feature groups whose largest size is 1, 2, 4 or 8"
    ):
        baselines.create(f"e2cnn-{name}", group="rot6")
