"""Capture against forward passes written by hand, on nets that were not written for it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ien import capture
from tests.helpers.blocks import BasicBlock

Maps = dict[str, Tensor]
Make = Callable[[], nn.Module]
ByHand = Callable[[dict[str, Tensor], Tensor], Maps]
Mode = Callable[[], AbstractContextManager[Any]]


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4))
        self.layer2 = nn.Sequential(BasicBlock(4, 6, stride=2), BasicBlock(6, 6))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3))


def nested() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    head = nn.Sequential(nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(inplace=True)), nn.MaxPool2d(2))
    return nn.Sequential(stem, head)


def conv(x: Tensor, state: dict[str, Tensor], name: str, **options: Any) -> Tensor:
    return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), **options)


def norm(x: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    """A batch norm in eval mode, from its definition."""
    mean, variance, weight, bias = (
        state[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def sequential_by_hand(state: dict[str, Tensor], x: Tensor) -> Maps:
    maps = {"0": conv(x, state, "0")}
    maps["1"] = norm(maps["0"], state, "1")
    maps["2"] = maps["1"].clamp(min=0)
    maps[""] = maps["3"] = conv(maps["2"], state, "3")
    return maps


def nested_by_hand(state: dict[str, Tensor], x: Tensor) -> Maps:
    maps = {"0.0": conv(x, state, "0.0")}
    maps["0"] = maps["0.1"] = maps["0.0"].clamp(min=0)
    maps["1.0"] = maps["1.0.1"] = conv(maps["0"], state, "1.0.0").clamp(min=0)
    maps[""] = maps["1"] = maps["1.1"] = F.max_pool2d(maps["1.0"], 2)
    return maps


def resnet_by_hand(state: dict[str, Tensor], x: Tensor) -> Maps:
    maps = {"conv1": conv(x, state, "conv1", padding=1)}
    maps["relu"] = norm(maps["conv1"], state, "bn1").clamp(min=0)
    maps["maxpool"] = h = F.max_pool2d(maps["relu"], 2)
    for name, stride in (("layer1.0", 1), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
        maps[f"{name}.conv1"] = conv(h, state, f"{name}.conv1", stride=stride, padding=1)
        inner = norm(maps[f"{name}.conv1"], state, f"{name}.bn1").clamp(min=0)
        maps[f"{name}.conv2"] = conv(inner, state, f"{name}.conv2", padding=1)
        if stride == 2:
            maps[f"{name}.downsample.0"] = conv(h, state, f"{name}.downsample.0", stride=2)
            h = maps[f"{name}.downsample"] = norm(maps[f"{name}.downsample.0"], state, f"{name}.downsample.1")
        h = maps[name] = (norm(maps[f"{name}.conv2"], state, f"{name}.bn2") + h).clamp(min=0)
    maps["layer1"], maps["layer2"] = maps["layer1.1"], maps["layer2.1"]
    maps["avgpool"] = h.mean((2, 3), keepdim=True)
    return maps


NETS: dict[str, tuple[Make, ByHand]] = {
    "sequential": (sequential, sequential_by_hand),
    "nested": (nested, nested_by_hand),
    "resnet": (ResNet, resnet_by_hand),
}
MODES: dict[str, Mode] = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}

every_net = pytest.mark.parametrize(("make", "by_hand"), NETS.values(), ids=NETS.keys())
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
with_versions = pytest.mark.parametrize("mode", [nullcontext, torch.no_grad], ids=["grad", "no_grad"])

# torch warns about its own look at .grad when it compiles a block whose input has a history
compiler_reads_grad = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor is being accessed:UserWarning"
)


def images() -> Tensor:
    return torch.randn(2, 3, 12, 12)


def trained(model: nn.Module) -> nn.Module:
    """In eval mode, with batch norms that are not the identity."""
    for name, value in model.state_dict().items():
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            nn.init.uniform_(value, 0.5, 1.5)
        elif name.endswith("running_mean") or name.endswith("bias"):
            nn.init.normal_(value)
    return model.eval()


def hooks_of(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def assert_maps_equal(features: Any, expected: Maps) -> None:
    assert list(features) == list(expected)
    for name, maps in expected.items():
        torch.testing.assert_close(features[name], maps, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# --- what is captured


@every_mode
@every_net
def test_captured_maps_equal_a_forward_pass_written_by_hand(make: Make, by_hand: ByHand, mode: Mode) -> None:
    model, x = trained(make()), images()
    with mode():
        expected = by_hand(model.state_dict(), x)
        with capture(model, expected) as features:
            model(x)
        assert_maps_equal(features, expected)


@every_net
def test_each_name_alone_gives_the_same_maps_as_all_together(make: Make, by_hand: ByHand) -> None:
    model, x = trained(make()), images()
    for name, maps in by_hand(model.state_dict(), x).items():
        with capture(model, name) as features:  # a text is one name
            model(x)
        assert_maps_equal(features, {name: maps})


@pytest.mark.parametrize("iterable", [list, tuple, iter, dict.fromkeys])
def test_names_may_repeat_and_come_in_any_iterable(iterable: Callable[[list[str]], Any]) -> None:
    model, x = trained(sequential()), images()
    expected = sequential_by_hand(model.state_dict(), x)
    with capture(model, iterable(["2", "0", "2", "2"])) as features:
        model(x)
    assert_maps_equal(features, {name: expected[name] for name in ("2", "0")})


def test_captures_nest() -> None:
    model, x = trained(sequential()), images()
    expected = sequential_by_hand(model.state_dict(), x)
    with capture(model, ["0", "2"]) as outer, capture(model, ["2"]) as inner:
        model(x)
    assert_maps_equal(outer, {name: expected[name] for name in ("0", "2")})
    assert_maps_equal(inner, {"2": expected["2"]})
    assert hooks_of(model) == 0


def test_maps_can_be_read_inside_and_later_calls_are_not_recorded() -> None:
    model, x = trained(sequential()), images()
    expected = sequential_by_hand(model.state_dict(), x)
    with capture(model, ["2"]) as features:
        model(x)
        torch.testing.assert_close(features["2"], expected["2"])
    model(x + 1)
    torch.testing.assert_close(features["2"], expected["2"])


def test_gradients_flow_through_a_captured_map() -> None:
    model, x = trained(ResNet()), images()
    with capture(model, ["layer1.0"]) as features:
        model(x)
    features["layer1.0"].square().sum().backward()
    result = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    state = model.state_dict() | parameters
    resnet_by_hand(state, x)["layer1.0"].square().sum().backward()
    expected = {name: p.grad for name, p in parameters.items() if p.grad is not None}

    assert {"conv1.weight", "bn1.bias", "layer1.0.conv2.weight"} <= set(result)
    assert set(result) == set(expected)
    for name in expected:
        torch.testing.assert_close(result[name], expected[name], rtol=1e-4, atol=1e-4)


@every_mode
def test_transform_runs_on_the_maps_and_its_result_is_kept(mode: Mode) -> None:
    model, x = trained(sequential()), images()
    seen = []

    def transform(name: str, maps: Tensor) -> Tensor:
        seen.append(name)
        return maps.mean((2, 3)) + int(name)

    with mode(), capture(model, ["2", "0"], transform=transform) as features:
        model(x)
        expected = sequential_by_hand(model.state_dict(), x)
    assert seen == ["0", "2"]  # inside the forward pass
    assert_maps_equal(features, {name: expected[name].mean((2, 3)) + int(name) for name in ("2", "0")})


# --- hygiene


def captured(
    names: list[str], run: Callable[[nn.Module, Tensor], Any], **options: Any
) -> Callable[..., None]:
    def use(model: nn.Module, x: Tensor) -> None:
        with capture(model, names, **options):
            run(model, x)

    return use


def fail(model: nn.Module, x: Tensor) -> None:
    raise ZeroDivisionError("in the block")


def run(model: nn.Module, x: Tensor) -> None:
    model(x)


FAILURES = {
    "none": (captured(["layer1", "layer2.0"], run), nullcontext()),
    "block": (captured(["layer1"], fail), pytest.raises(ZeroDivisionError, match="in the block")),
    "model": (
        captured(["layer1"], lambda model, x: model(x[:, :2])),
        pytest.raises(RuntimeError, match="to have 3 channels, but got 2"),
    ),
    "names": (captured(["layer1", "layer7"], run), pytest.raises(KeyError, match="no layer 'layer7'")),
    "output": (captured(["layer1", "fc"], run), pytest.raises(TypeError, match="layer 'fc' returned")),
    "transform": (
        captured(["layer1"], run, transform=lambda name, maps: maps.reshape(-7)),
        pytest.raises(RuntimeError, match="invalid shape dimension -7"),
    ),
}


@pytest.mark.parametrize("where", FAILURES)
def test_no_hook_outlives_the_block(where: str) -> None:
    use, failure = FAILURES[where]
    model = ResNet().eval()
    with failure:
        use(model, images())
    assert hooks_of(model) == 0


def test_hooks_of_others_stay_and_what_they_return_is_captured() -> None:
    model, x = trained(sequential()), images()
    model[2].register_forward_hook(lambda module, args, output: output + 1)
    expected = sequential_by_hand(model.state_dict(), x)["2"] + 1
    with capture(model, ["2"]) as features:
        model(x)
    torch.testing.assert_close(features["2"], expected)
    assert hooks_of(model) == 1


def test_capture_of_nothing_registers_no_hook() -> None:
    model = ResNet().eval()
    with capture(model, []) as features:
        assert hooks_of(model) == 0
        model(images())
    assert (len(features), list(features), dict(features)) == (0, [], {})


@pytest.mark.parametrize("training", [False, True])
def test_capture_changes_nothing_that_the_model_computes(training: bool) -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(ResNet(), nn.Dropout(0.5)).train(training)

    x = images()
    plain, captured, given = build(), build(), x.clone()
    torch.manual_seed(2)
    plain_output = plain(x)
    plain_output.sum().backward()
    plain_random_state = torch.get_rng_state()

    torch.manual_seed(2)
    with capture(captured, ["0.layer1", "0.layer2.0", "0.relu"]):
        output = captured(x)
    output.sum().backward()

    assert torch.equal(torch.get_rng_state(), plain_random_state)
    assert torch.equal(x, given)
    assert torch.equal(output, plain_output)
    assert [m.training for m in captured.modules()] == [training] * len(list(captured.modules()))
    assert list(captured.state_dict()) == list(plain.state_dict())
    for value, expected in zip(captured.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(value, expected)
    for p, q in zip(captured.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


# --- wrapped models


def test_names_in_a_distributed_model_have_no_module_prefix(process_group: None) -> None:
    inner, x = trained(ResNet()), images()
    expected = resnet_by_hand(inner.state_dict(), x)
    model = DistributedDataParallel(inner)
    with capture(model, expected) as features:
        model(x)
    assert_maps_equal(features, expected)
    features["layer1"].sum().backward()
    assert inner.conv1.weight.grad is not None
    assert hooks_of(model) == 0


@pytest.mark.parametrize("part", [False, True])
def test_data_parallel_adds_nothing_to_a_name(part: bool) -> None:
    model, x = trained(nested()), images()
    expected = nested_by_hand(model.state_dict(), x)
    if part:
        model[0] = nn.DataParallel(model[0])
    else:
        model = nn.DataParallel(model)
    with capture(model, expected) as features:
        model(x)
    assert_maps_equal(features, expected)


# --- compiled models


def compiled_model(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager", fullgraph=True)


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


COMPILERS = {"torch.compile(model)": compiled_model, "model.compile()": compiled_in_place}
every_compiler = pytest.mark.parametrize("compiled", COMPILERS.values(), ids=COMPILERS.keys())
inside_compiled = r"layer 'layer1.0' lies inside a compiled module.*the model from before torch.compile"


@every_compiler
@pytest.mark.parametrize("warm", [False, True])
@compiler_reads_grad
def test_layer_inside_a_compiled_model_is_an_error(
    fresh_compiler: None, compiled: Callable[[nn.Module], nn.Module], warm: bool
) -> None:
    model = compiled(ResNet().eval())
    if warm:
        model(images())
    with pytest.raises(RuntimeError, match=inside_compiled):
        with capture(model, ["layer1.0"]):
            pass
    assert hooks_of(model) == 0


@every_compiler
@pytest.mark.parametrize(("warm", "mode"), [(False, torch.no_grad), (True, torch.inference_mode)])
def test_block_compiled_by_itself_is_captured_by_its_own_name(
    fresh_compiler: None, compiled: Callable[[nn.Module], nn.Module], warm: bool, mode: Mode
) -> None:
    model = trained(ResNet())
    batches, state = [images() for _ in range(3)], copy.deepcopy(model.state_dict())
    model.layer1 = compiled(model.layer1)
    with mode():
        if warm:
            model(batches[0])
        for x in batches:
            with capture(model, ["maxpool", "layer1", "layer2"]) as features:
                model(x)
            expected = resnet_by_hand(state, x)
            assert_maps_equal(features, {name: expected[name] for name in ("maxpool", "layer1", "layer2")})
        with capture(model, ["layer1"]) as features:
            for x in batches:
                model(x)
        for maps, x in zip(features.all("layer1"), batches, strict=True):
            torch.testing.assert_close(maps, resnet_by_hand(state, x)["layer1"])
    assert hooks_of(model) == 0


@compiler_reads_grad
@every_compiler
def test_gradients_flow_through_a_block_compiled_by_itself(
    fresh_compiler: None, compiled: Callable[[nn.Module], nn.Module]
) -> None:
    model, x = trained(nested()), images()
    expected = nested_by_hand(model.state_dict(), x)
    weight = model[0][0].weight
    with capture(model, ["1"]) as features:
        model(x)
    (plain,) = torch.autograd.grad(features["1"].sum(), weight)
    model[1] = compiled(model[1])
    with capture(model, ["1"]) as features:
        model(x)
    assert_maps_equal(features, {"1": expected["1"]})
    torch.testing.assert_close(torch.autograd.grad(features["1"].sum(), weight)[0], plain)


def test_only_layers_inside_the_compiled_block_are_an_error(fresh_compiler: None) -> None:
    model, x = trained(ResNet()), images()
    expected = resnet_by_hand(model.state_dict(), x)
    model.layer1 = torch.compile(model.layer1, backend="eager")
    with pytest.raises(RuntimeError, match=inside_compiled):
        with capture(model, ["layer2.0", "layer1.0"]):
            pass
    with torch.no_grad(), capture(model, ["layer2.0"]) as features:
        model(x)
        assert hooks_of(model.layer1._orig_mod) == 0  # a hook inside would have it compiled anew
    assert_maps_equal(features, {"layer2.0": expected["layer2.0"]})


def test_layer_inside_a_compiled_distributed_model_is_the_same_error(
    fresh_compiler: None, process_group: None
) -> None:
    inside_out = DistributedDataParallel(torch.compile(ResNet(), backend="eager"))
    outside_in = torch.compile(DistributedDataParallel(ResNet()), backend="eager")  # the order torch advises
    for model in (inside_out, outside_in):
        with pytest.raises(RuntimeError, match=inside_compiled):
            with capture(model, ["layer1.0"]):
                pass


# --- layers that ran more or less than once


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.unused = nn.Conv2d(3, 4, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.backbone(a) * self.backbone(b)).sum((1, 2, 3))


def test_every_call_is_recorded_in_order() -> None:
    model, (a, b) = Siamese(), (images(), images())
    with capture(model, ["backbone"]) as features:
        model(a, b)
        model(b, a)
    calls = features.all("backbone")
    assert len(calls) == 4
    for maps, x in zip(calls, (a, b, b, a), strict=True):
        expected = F.conv2d(x, model.backbone[0].weight, model.backbone[0].bias).clamp(min=0)
        torch.testing.assert_close(maps, expected)


def test_one_map_of_a_layer_that_ran_twice_is_an_error() -> None:
    model = Siamese()
    with capture(model, ["backbone"]) as features:
        model(images(), images())
    assert "backbone" in features
    match = r"'backbone' ran 2 times .*features\.all\('backbone'\) gives the list"
    with pytest.raises(RuntimeError, match=match):
        features["backbone"]


@pytest.mark.parametrize("run", [False, True])
def test_layer_that_never_ran_is_an_error(run: bool) -> None:
    model = Siamese()
    name = "unused" if run else "backbone"
    with capture(model, [name]) as features:
        if run:
            model(images(), images())
    message = f"layer '{name}' never ran while it was captured: call the model inside the with block"
    for read in (features.__getitem__, features.all):
        with pytest.raises(RuntimeError, match=message):
            read(name)


# --- names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layer3", r"no layer 'layer3'; did you mean .*layer[12]"),
        ("layer1.0.rleu", r"no layer 'layer1.0.rleu'; did you mean .*layer1.0.relu"),
        ("module.layer1", r"no layer 'module.layer1'; did you mean .*layer1"),
        ("@@@", r"no layer '@@@'; it has .*conv1, bn1, relu, maxpool, layer1, layer1.0, "),
    ],
)
def test_unknown_name_is_a_key_error_with_the_closest_names(name: str, message: str) -> None:
    model = ResNet()
    with pytest.raises(KeyError, match=message):
        with capture(model, ["layer1", name]):
            pass
    assert hooks_of(model) == 0


def test_name_that_was_not_captured_is_a_key_error_on_access() -> None:
    model = sequential()
    with capture(model, ["2", "0"]) as features:
        model(images())
    for read in (features.__getitem__, features.all):
        with pytest.raises(KeyError, match="layer '1' was not captured; captured: 2, 0"):
            read("1")
    with capture(model, []) as features:
        model(images())
    with pytest.raises(KeyError, match="layer '1' was not captured; captured: none"):
        features["1"]


def test_features_are_a_mapping() -> None:
    model, x = trained(sequential()), images()
    expected = sequential_by_hand(model.state_dict(), x)
    with capture(model, ["2", "0"]) as features:
        assert "2" in features and repr(features) == "Features(2: [], 0: [])"
        model(x)
    assert (list(features), len(features), list(features.keys())) == (["2", "0"], 2, ["2", "0"])
    assert "2" in features and "1" not in features and features.get("1") is None
    assert_maps_equal(dict(features), {name: expected[name] for name in ("2", "0")})
    assert torch.equal(features.all("0")[0], features["0"]) and len(features.all("0")) == 1
    assert repr(features) == "Features(2: [(2, 4, 10, 10)], 0: [(2, 4, 10, 10)])"


# --- outputs that are no maps


class Returns(nn.Module):
    def __init__(self, output: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output(x)


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (lambda x: x.mean((2, 3)), r"a tensor of shape \(2, 3\)"),
        (lambda x: x[:, :, None], r"a tensor of shape \(2, 3, 1, 12, 12\)"),
        (lambda x: x.sum(), r"a tensor of shape \(\)"),
        (
            lambda x: (x, x.sum()),
            r"a tuple of 2 \(a tensor of shape \(2, 3, 12, 12\), a tensor of shape \(\)\)",
        ),
        (lambda x: [x], r"a list of 1 \(a tensor of shape \(2, 3, 12, 12\)\)"),
        (lambda x: {"out": x, "aux": x}, "a dict with keys out, aux"),
        (lambda x: None, "a NoneType"),
    ],
)
def test_an_output_that_is_no_batch_of_maps_is_described(
    output: Callable[[Tensor], Any], described: str
) -> None:
    model = nn.Sequential(nn.Identity(), Returns(output))
    message = rf"layer '1' returned {described}; capture needs one tensor of shape \(B, C, H, W\)"
    with pytest.raises(TypeError, match=message):
        with capture(model, ["1"]):
            model(images())
    assert hooks_of(model) == 0


# --- layers overwritten in place


@with_versions
def test_layer_overwritten_by_an_activation_is_an_error_that_names_it(mode: Mode) -> None:
    model, x = trained(ResNet()), images()
    with mode(), capture(model, ["bn1", "relu"]) as features:
        model(x)
    for read in (features.__getitem__, features.all):
        with pytest.raises(
            RuntimeError, match=r"'bn1' was overwritten in place by 'relu' .*capture 'relu' instead$"
        ):
            read("bn1")
    torch.testing.assert_close(features["relu"], resnet_by_hand(model.state_dict(), x)["relu"])


@with_versions
@pytest.mark.parametrize("bn", ["bn1", "bn2"])
def test_a_shared_activation_is_named_with_how_often_it_ran(mode: Mode, bn: str) -> None:
    model = trained(ResNet())
    with mode(), capture(model, [f"layer1.1.{bn}"]) as features:
        model(images())
    message = (
        rf"'layer1.1.{bn}' was overwritten in place by 'layer1.1.relu' .*"
        r"capture 'layer1.1.relu' instead \(it ran 2 times: features.all\), or give it inplace=False"
    )
    with pytest.raises(RuntimeError, match=message):
        features[f"layer1.1.{bn}"]


def test_shared_activation_and_its_block_can_be_captured() -> None:
    model, x = trained(ResNet()), images()
    expected = resnet_by_hand(model.state_dict(), x)
    with capture(model, ["layer1.1.relu", "layer1.1"]) as features:
        model(x)
    first, second = features.all("layer1.1.relu")
    torch.testing.assert_close(
        first, norm(expected["layer1.1.conv1"], model.state_dict(), "layer1.1.bn1").clamp(min=0)
    )
    torch.testing.assert_close(second, expected["layer1.1"])
    torch.testing.assert_close(features["layer1.1"], expected["layer1.1"])


class WritesInPlace(nn.Module):
    """An operation writes into what ``bn`` returned; the block returns the same tensor or a new one."""

    def __init__(self, operation: Callable[[Tensor], Any], returns_it: bool) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(3)
        self.operation, self.returns_it = operation, returns_it

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn(x)
        self.operation(out)
        return out if self.returns_it else out * 1


def add_in_place(x: Tensor) -> None:
    x += 1


IN_PLACE = {
    "x += y": add_in_place,
    "F.relu": lambda x: F.relu(x, inplace=True),
    "slice": lambda x: x[:, :1].zero_(),
}
every_operation = pytest.mark.parametrize("operation", IN_PLACE.values(), ids=IN_PLACE.keys())


@with_versions
@every_operation
def test_layer_overwritten_by_a_function_is_an_error_that_says_so(
    mode: Mode, operation: Callable[[Tensor], Any]
) -> None:
    model = nn.Sequential(nn.Identity(), WritesInPlace(operation, returns_it=False))
    with mode(), capture(model, ["1.bn"]) as features:
        model(images())
    message = r"'1.bn' was overwritten in place after it ran, by an operation that is not a module \(x \+= y"
    with pytest.raises(RuntimeError, match=message):
        features["1.bn"]


@with_versions
@every_operation
def test_a_block_that_overwrites_and_returns_a_layer_is_named(
    mode: Mode, operation: Callable[[Tensor], Any]
) -> None:
    model, x = nn.Sequential(nn.Identity(), WritesInPlace(operation, returns_it=True)), images()
    with mode(), capture(model, ["1.bn", "1"]) as features:
        output = model(x)
    with pytest.raises(RuntimeError, match=r"'1.bn' was overwritten in place by '1' .*capture '1' instead$"):
        features["1.bn"]
    assert torch.equal(features["1"], output)


def test_activation_and_then_a_function_is_blamed_on_the_function() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.relu = nn.BatchNorm2d(3), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            out = self.relu(self.bn(x))
            out += x
            return out.mean((2, 3))

    model = Twice()
    with capture(model, ["bn", "relu"]) as features:
        model(images())
    for name in features:
        with pytest.raises(
            RuntimeError, match=rf"'{name}' was overwritten .*not a module.*write it out of place"
        ):
            features[name]


def test_one_overwritten_call_of_several_is_an_error() -> None:
    bn, relu = nn.BatchNorm2d(3), nn.ReLU(inplace=True)
    model = nn.ModuleDict({"bn": bn, "relu": relu})
    with capture(model, ["bn"]) as features:
        bn(images())
        relu(bn(images()))
    with pytest.raises(RuntimeError, match=r"'bn' was overwritten in place by 'relu'"):
        features.all("bn")


def test_input_overwritten_in_place_is_not_mistaken_for_the_output() -> None:
    """A ReLU in place on a layer's input leaves the layer's own output alone."""
    model, x = nn.ModuleDict({"conv": nn.Conv2d(3, 3, 1), "relu": nn.ReLU(inplace=True)}), images()
    expected = F.conv2d(x, model["conv"].weight, model["conv"].bias)
    with capture(model, ["conv"]) as features:
        model["conv"](x)
        model["relu"](x)
    torch.testing.assert_close(features["conv"], expected)


def test_inference_mode_keeps_the_values_of_a_layer_overwritten_later() -> None:
    model, x = trained(ResNet()), images()
    state = model.state_dict()
    with torch.inference_mode(), capture(model, ["bn1", "layer1.0.bn2", "layer1"]) as features:
        model(x)
    maps = resnet_by_hand(state, x)
    expected = {"bn1": norm(maps["conv1"], state, "bn1")}
    expected["layer1.0.bn2"] = norm(maps["layer1.0.conv2"], state, "layer1.0.bn2")
    expected["layer1"] = maps["layer1"]
    assert expected["bn1"].min() < 0
    assert_maps_equal(features, expected)


def test_modules_that_refer_to_their_parent_are_walked_once():
    parent = nn.Sequential(nn.Conv2d(1, 4, 3))
    parent[0].parent = parent
    with capture(parent, ["0"]) as features:
        out = parent(torch.rand(2, 1, 5, 5))
    assert features["0"] is out


def test_block_compiled_in_place_is_not_compiled_again_for_every_step():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU()), nn.Flatten())
    net[0].compile(backend=counter)
    x = torch.rand(2, 1, 5, 5)
    for _ in range(10):
        with capture(net, ["0"], transform=lambda name, h: h.amax(1)) as features:
            net(x)
        assert torch.equal(features["0"], net[0][1](net[0][0](x)).amax(1))
    assert counter.frame_count == 1
    torch._dynamo.reset()
