"""An ordinary net that is equivariant before training: against pixels, against e2cnn, and its arguments."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ien
from ien import models
from ien.tying.start import restored_on_error
from tests.helpers.blocks import BasicBlock
from tests.helpers.tied import Net, assert_same_weights, channels_moved, moved, regular_error, state

pytestmark = pytest.mark.usefixtures("one_thread")


def user_net() -> nn.Sequential:
    """Biases, in-place activations, odd sizes, two kinds of pools, a linear layer on pooled channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.GroupNorm(2, 16),
        nn.PReLU(16),
        nn.Conv2d(16, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def usual_resnet() -> nn.Sequential:
    """As in torchvision, with no group pool."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(True))
    layers = [BasicBlock(8, 8, 1), BasicBlock(8, 16, 2)]
    return nn.Sequential(
        stem, nn.MaxPool2d(3, 2, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
    )


def siamfc() -> nn.Module:
    return models.factory("siamfc")("alexnet-v2", "4-2-1", 1 / 32)


NETS = {  # a net, its group and feature groups, channels and side of an image, and layers to measure
    "cnn6": (lambda: models.cnn6(4, 1 / 32), "rot4", 4, (1, 28), ["conv1", "conv4", "conv6"]),
    "cnn6 mixed": (lambda: models.cnn6("4-2-1", 1 / 32), "rot4", "4-2-1", (1, 28), ["conv1", "conv6"]),
    "cnn6 flips": (lambda: models.cnn6(8, 1 / 32), "rot4xflip", 8, (1, 28), ["conv1", "conv6"]),
    "resnet18": (lambda: models.resnet18(4, 1 / 32), "rot4", 4, (3, 16), ["layer1", "layer2", "layer4"]),
    "vgg": (lambda: models.vgg(4, 1 / 32), "rot4", 4, (3, 32), ["conv1", "conv5", "conv8"]),
    "wide-resnet": (lambda: models.wide_resnet(4, 1 / 64), "rot4", 4, (3, 16), ["layer1", "layer3"]),
    "siamfc": (siamfc, "rot4", "4-2-1", (3, 127), ["conv1", "conv5"]),
    "user": (user_net, "rot4", 4, (3, 17), ["5", "7"]),
    "user flips": (user_net, "rot4xflip", 8, (3, 17), ["5", "7"]),
    "usual resnet": (usual_resnet, "rot4", 4, (3, 33), ["0", "2", "3"]),
}


def prepared(name):
    make, group, feature_groups, (channels, size), layers = NETS[name]
    torch.manual_seed(3)
    return make().eval(), ien.group(group), feature_groups, torch.rand(2, channels, size, size), layers


@pytest.mark.parametrize("name", NETS)
def test_every_layer_is_equivariant_and_the_output_invariant(name) -> None:
    net, group, feature_groups, x, layers = prepared(name)
    wrong = ien.measure(net, x, group, layers, feature_groups, floors=False)
    assert all(layer.relative > 0.01 for layer in wrong.layers.values())
    start = ien.start_equivariant(net, group, feature_groups, x)
    assert all(0.3 < layer.distance < 1 and layer.exact < 1e-10 for layer in start.layers.values())
    report = ien.measure(net, torch.rand_like(x), group, layers, feature_groups, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())
    assert report.output is None or report.output.logit_error < 1e-10
    with ien.capture(net, layers) as features, torch.no_grad():
        net(x.clone())
        net(moved(x, group.labels[1]))
    for layer in layers:
        h, h_g = features.all(layer)
        expected = moved(h, group.labels[1])[:, channels_moved(group, feature_groups, h.shape[1], 1)]
        assert float((h_g - expected).square().mean() / h.var()) < 1e-10 and h.std() > 1e-3


@pytest.mark.parametrize("name", ["cnn6 mixed", "user", "usual resnet"])
def test_the_variance_of_every_layer_is_kept_on_other_images(name) -> None:
    net, group, feature_groups, x, _ = prepared(name)
    found = {}
    for key, module in net.named_modules():
        # but not of layers behind a group pool, which stay
        if isinstance(module, nn.Conv2d | nn.Linear) and "classifier" not in key:
            found[key] = []

            def note(layer, args, output, variances=found[key]) -> None:
                unbiased = output if layer.bias is None else output.movedim(1, -1) - layer.bias
                variances.append(float(unbiased.var()))

            module.register_forward_hook(note)
    with torch.no_grad():
        net(torch.rand(48, *x.shape[1:]))
        ien.start_equivariant(net, group, feature_groups, torch.rand(48, *x.shape[1:]))
        net(torch.rand(48, *x.shape[1:]))
    assert len(found) > 2 and all(0.9 < last / first < 1.1 for first, *_, last in found.values()), found


@pytest.mark.parametrize("name", ["cnn6 mixed", "usual resnet", "user flips"])
def test_projecting_a_trained_net_a_second_time_changes_nothing(name) -> None:
    net, group, feature_groups, x, layers = prepared(name)
    for tensor in [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]:
        tensor.data += 0.1 * torch.rand_like(tensor)  # norms have statistics
    first = ien.start_equivariant(net, group, feature_groups, x, weights="project")
    norms = [n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert set(norms) <= set(first.layers)
    weights = state(net)
    report = ien.measure(net, x, group, layers, feature_groups, floors=False)
    assert all(layer.relative < 1e-10 for layer in report.layers.values())
    second = ien.start_equivariant(net, group, feature_groups, x, weights="project")
    assert all(layer.distance < 1e-6 for layer in second.layers.values())
    torch.testing.assert_close(net.state_dict(), weights)


def test_statistics_of_norms_fit_the_projected_weights() -> None:
    torch.manual_seed(2)
    net, x = usual_resnet(), torch.rand(32, 3, 33, 33)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        for _ in range(40):
            net(torch.rand(16, 3, 33, 33))
        before = net.eval()(x).std(0).mean()
        ien.start_equivariant(net, "rot4", 4, torch.rand(32, 3, 33, 33), weights="project")
        incoming = {}
        for norm in norms:
            norm.register_forward_pre_hook(lambda module, args: incoming.update({module: args[0]}))
        assert net(x).std(0).mean() > 0.2 * before
    for norm in norms:
        variance, mean = torch.var_mean(incoming[norm], (0, 2, 3))
        ratios = variance / norm.running_var
        assert 0.5 < ratios.min() and ratios.max() < 2, ratios
        assert ((mean - norm.running_mean).abs() < 0.5 * norm.running_var.sqrt()).all()
        for numbers in (norm.running_mean, norm.running_var):
            assert torch.equal(numbers, numbers.view(-1, 4)[:, :1].expand(-1, 4).flatten())


@pytest.mark.parametrize(("group", "size"), [("rot4", 4), ("rot4xflip", 8)])
def test_nets_exported_from_e2cnn_are_at_no_distance(group, size) -> None:
    pytest.importorskip("e2cnn")
    net, x = ien.baselines.create("e2cnn-cnn6", group=group, width=1 / 32).export(), torch.rand(2, 1, 28, 28)
    start = ien.start_equivariant(net, group, size, x, weights="project")
    assert len(start.layers) == 6 and all(layer.distance < 1e-6 for layer in start.layers.values())


@pytest.mark.parametrize("feature_groups", [8, "8-4-2-1"])
def test_eighth_turns_cost_interpolation_only(feature_groups) -> None:
    channels = ien.FeatureGroups.of(feature_groups).channels(2 if feature_groups == 8 else 8)
    convs = nn.Conv2d(1, channels, 7, padding=3), nn.Conv2d(channels, channels, 5, padding=2)
    net = nn.Sequential(convs[0], nn.ELU(), convs[1], nn.ELU())
    x = F.interpolate(torch.rand(2, 1, 5, 5), 25, mode="bicubic")
    settings = {"floors": False, "action": "regular"}
    before = ien.measure(net, x, "rot8", ["1", "3"], feature_groups, **settings).layers
    start = ien.start_equivariant(net, "rot8", feature_groups, x)
    after = ien.measure(net, x, "rot8", ["1", "3"], feature_groups, **settings).layers
    for name, layer in after.items():
        assert layer.exact < 1e-10 and layer.between < 0.3 and layer.between < before[name].between / 5
    assert start.layers["0"].between < 0.2 and "between" in str(start)
    again = ien.start_equivariant(net, "rot8", feature_groups, x, weights="project")
    assert all(layer.distance < 1e-6 for layer in again.layers.values())


def test_head_names_parameters_mode_and_random_state_stay() -> None:
    net, group, feature_groups, x, _ = prepared("cnn6")
    net.train()
    head, parameters, random = state(net.classifier), dict(net.named_parameters()), torch.get_rng_state()
    ien.start_equivariant(net, group, feature_groups, x)
    after = dict(net.named_parameters())
    assert list(after) == list(parameters) and all(after[name] is parameters[name] for name in after)
    assert_same_weights(net.classifier, head)  # behind the group pool
    assert net.training and net.conv1.training and torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


NET, X = nn.Sequential(nn.Conv2d(1, 8, 3)), torch.rand(2, 1, 9, 9)
WRONG = {
    "scale": ({"group": "scale0.7"}, ValueError, "needs rotations and flips"),
    "no exact element": ({"group": "rot3"}, ValueError, "needs rotations and flips"),
    "rotations and scale": ({"group": "rot4xscale0.7"}, ValueError, "needs rotations and flips"),
    "size": ({"feature_groups": 3}, ValueError, "feature groups of size 3; use 4"),
    "weights": ({"weights": "old"}, ValueError, 'weights must be "random" or "project"; got \'old\''),
    "kernels": ({"kernels": "round"}, ValueError, 'kernels must be "free" or "smooth"; got \'round\''),
    "equal images": ({"input": torch.ones(2, 1, 9, 9)}, ValueError, "almost invariant to rot4"),
    "one image": ({"input": X[0]}, ValueError, r"a batch of images \(B, C, H, W\).*got torch.float32"),
    "no tensor": ({"input": [X]}, ValueError, r"a batch of images \(B, C, H, W\).*got a list"),
    "nan": ({"input": X / 0}, ValueError, "input holds NaN or infinite values"),
    "two inputs": ({"model": nn.Bilinear(9, 9, 3)}, ValueError, "if it takes several inputs, wrap it"),
    "no model": ({"model": "cnn6"}, TypeError, "needs a torch.nn.Module; got a str"),
    "unknown layer": ({"feature_groups": {"": 4, "con": 1}}, KeyError, "names 'con'"),
    "no rest": (
        {"model": nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU()), "feature_groups": {"1": 4}},
        KeyError,
        "says nothing about layer",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name) -> None:
    change, error, message = WRONG[name]
    arguments = {"model": NET, "group": "rot4", "feature_groups": 4, "input": X, **change}
    with pytest.raises(error, match=message):
        ien.start_equivariant(**arguments)


def test_a_compiled_model_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"before torch\.compile"):
        ien.start_equivariant(torch.compile(NET, backend="eager"), "rot4", 4, X)


@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, nn.DataParallel])
def test_a_model_is_started_before_it_is_wrapped(wrap, tmp_path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        net = wrap(nn.Sequential(nn.Conv2d(1, 8, 3)))
        for model in (net, nn.Sequential(net)):
            with pytest.raises(RuntimeError, match=f"{wrap.__name__}.*start it before wrapping"):
                ien.start_equivariant(model, "rot4", 4, X)
    finally:
        dist.destroy_process_group()


def test_a_block_that_fails_leaves_parameters_and_buffers_as_they_were() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
    before = state(net)
    with pytest.raises(KeyboardInterrupt), restored_on_error(net):
        for tensor in net.state_dict().values():
            tensor.fill_(3)
        raise KeyboardInterrupt
    assert_same_weights(net, before)


def test_lazy_layers_get_their_weights_first() -> None:
    net = nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.LazyConv2d(8, 3))
    ien.recommended(net, "rot4", 4, X, torch.optim.SGD(net.parameters(), lr=0.1))
    assert regular_error(net, X, 4) < 1e-10


def test_a_net_that_is_equivariant_whatever_its_weights_stays() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    before = state(net)
    start = ien.start_equivariant(net, "rot4", 1, X)
    assert_same_weights(net, before)
    assert start.layers == {} and str(start) == "already equivariant to rot4: no weight had to change"


def test_a_layer_that_runs_twice_one_that_does_not_and_the_table() -> None:
    layers = {name: nn.Conv2d(8, 8, 3) for name in ("again", "aside")}
    first, slope = nn.Conv2d(1, 8, 3), nn.PReLU(8)
    net = Net(lambda net, x: net.again(net.again(net.first(x)).relu()), first=first, **layers, slope=slope)
    x = torch.rand(2, 1, 11, 11)
    with torch.inference_mode():
        start = ien.start_equivariant(net, "rot4", 4, x)
    net(x).sum().backward()  # its weights can still be trained
    assert list(start.layers) == ["first", "again"] and start.unused == ("aside", "slope")
    lines = [line.split() for line in str(start).splitlines()]
    assert lines[0][:4] == ["equivariant", "to", "rot4,", "weights"]
    assert lines[1] == ["layer", "before", "after", "distance", "exact"]
    assert lines[2][:3] == ["first", "1", "4"] and lines[-1][-3:] == ["changed:", "aside,", "slope"]


def test_maps_in_feature_groups_are_printed_with_how_to_get_classes() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    advice = 'feature_groups={"": …, "2": 1}'
    start = ien.start_equivariant(net, "rot4", 4, X)
    assert f"not class scores; to return class scores: {advice}" in str(start)
    assert start.exchanged == start.class_scores == advice
    for asked in (1, 4):
        assert "class scores" not in str(ien.start_equivariant(net, "rot4", {"": 4, "2": asked}, X))
