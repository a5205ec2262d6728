"""Capture against forward passes written by hand, on nets that were not written for it."""

import copy
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ien
from ien import capture
from ien.loss.modules import walk
from tests.helpers.blocks import BasicBlock
from tests.helpers.nets import Function
from tests.helpers.parametrized import with_symmetric
from tests.helpers.tied import Net


def resnet():
    parts = OrderedDict(
        conv1=nn.Conv2d(3, 4, 3, 1, 1, bias=False),
        bn1=nn.BatchNorm2d(4),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(2),
        layer1=nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4)),
        layer2=nn.Sequential(BasicBlock(4, 6, stride=2), BasicBlock(6, 6)),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(6, 5),
    )
    return nn.Sequential(parts)


def sequential():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3))


def nested():
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    head = nn.Sequential(nn.Sequential(nn.Conv2d(4, 5, 3), nn.ReLU(inplace=True)), nn.MaxPool2d(2))
    return nn.Sequential(stem, head)


def conv(x, state, name, **options):
    return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), **options)


def norm(x, state, name):
    """A batch norm in eval mode, from its definition."""
    keys = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = (state[f"{name}.{key}"][:, None, None] for key in keys)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def sequential_by_hand(state, x):
    maps = {"0": conv(x, state, "0")}
    maps["1"] = norm(maps["0"], state, "1")
    maps["2"] = maps["1"].clamp(min=0)
    maps[""] = maps["3"] = conv(maps["2"], state, "3")
    return maps


def nested_by_hand(state, x):
    maps = {"0.0": conv(x, state, "0.0")}
    maps["0"] = maps["0.1"] = maps["0.0"].clamp(min=0)
    maps["1.0"] = maps["1.0.1"] = conv(maps["0"], state, "1.0.0").clamp(min=0)
    maps[""] = maps["1"] = maps["1.1"] = F.max_pool2d(maps["1.0"], 2)
    return maps


def resnet_by_hand(state, x):
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


BY_HAND = {sequential: sequential_by_hand, nested: nested_by_hand, resnet: resnet_by_hand}
MODES = [nullcontext, torch.no_grad, torch.inference_mode]

every_net = pytest.mark.parametrize("make", BY_HAND)
every_mode = pytest.mark.parametrize("mode", MODES)
with_versions = pytest.mark.parametrize("mode", MODES[:2])

# torch warns about its own look at .grad when it compiles a block whose input has a history
compiler_reads_grad = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor is being accessed:UserWarning"
)


def images():
    return torch.randn(2, 3, 12, 12)


def trained(model):
    """In eval mode, with batch norms that are not the identity."""
    for name, value in model.state_dict().items():
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            nn.init.uniform_(value, 0.5, 1.5)
        elif name.endswith("running_mean") or name.endswith("bias"):
            nn.init.normal_(value)
    return model.eval()


def prepared(make):
    """A net, images, and all its maps by hand."""
    model, x = trained(make()), images()
    return model, x, BY_HAND[make](model.state_dict(), x)


def captured(model, names, *inputs, **options):
    with capture(model, names, **options) as features:
        model(*inputs)
    return features


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def assert_maps_equal(features, expected, names=None):
    names = list(expected if names is None else names)
    assert list(features) == names
    for name in names:
        torch.testing.assert_close(
            features[name], expected[name], msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# --- what is captured


@every_mode
@every_net
def test_captured_maps_equal_a_forward_pass_by_hand_together_and_alone(make, mode):
    model, x, expected = prepared(make)
    with mode():
        assert_maps_equal(captured(model, expected, x), expected)
        for name in expected:
            assert_maps_equal(captured(model, name, x), expected, [name])  # a text is one name


def test_captures_nest_are_read_inside_and_record_no_later_call():
    model, x, expected = prepared(sequential)
    with capture(model, ["0", "2"]) as outer, capture(model, ["2"]) as inner:
        model(x)
        assert_maps_equal(inner, expected, ["2"])
    model(x + 1)
    assert_maps_equal(outer, expected, ["0", "2"])
    assert_maps_equal(inner, expected, ["2"])


def test_gradients_flow_through_a_captured_map():
    model, x = trained(resnet()), images()
    captured(model, ["layer1.0"], x)["layer1.0"].square().sum().backward()
    result = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    resnet_by_hand(model.state_dict() | parameters, x)["layer1.0"].square().sum().backward()
    expected = {name: p.grad for name, p in parameters.items() if p.grad is not None}

    assert {"conv1.weight", "bn1.bias", "layer1.0.conv2.weight"} <= set(result)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@every_mode
def test_transform_runs_on_the_maps_and_its_result_is_kept(mode):
    model, x, expected = prepared(sequential)
    seen = []

    def transform(name, maps):
        seen.append(name)
        return maps.mean((2, 3)) + int(name)

    with mode():
        features = captured(model, ["2", "0"], x, transform=transform)
    assert seen == ["0", "2"]  # inside the forward pass
    assert_maps_equal(features, {name: expected[name].mean((2, 3)) + int(name) for name in ("2", "0")})


# --- hygiene

TRANSFORM = {"transform": lambda name, maps: maps.reshape(-7)}


@pytest.mark.parametrize(
    ("names", "channels", "options", "failure"),
    [
        (["layer1", "layer2.0"], 3, {}, nullcontext()),
        (["layer1"], 2, {}, pytest.raises(RuntimeError, match="to have 3 channels, but got 2")),
        (["layer1", "layer7"], 3, {}, pytest.raises(KeyError, match="no layer 'layer7'")),
        (["layer1", "fc"], 3, {}, pytest.raises(TypeError, match="layer 'fc' returned")),
        (["layer1"], 3, TRANSFORM, pytest.raises(RuntimeError, match="invalid shape dimension -7")),
    ],
    ids=["none", "model", "names", "output", "transform"],
)
def test_no_hook_outlives_the_block(names, channels, options, failure):
    model = resnet().eval()
    with failure:
        captured(model, names, images()[:, :channels], **options)
    assert hooks_of(model) == 0
    with pytest.raises(ZeroDivisionError), capture(model, ["layer1"]):
        raise ZeroDivisionError
    assert hooks_of(model) == 0


def test_hooks_of_others_stay_and_what_they_return_is_captured():
    model, x, expected = prepared(sequential)
    model[2].register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(captured(model, ["2"], x)["2"], expected["2"] + 1)
    assert hooks_of(model) == 1
    with capture(model, []) as features:  # no hook for nothing
        assert hooks_of(model) == 1
        model(x)
    assert (len(features), list(features), dict(features)) == (0, [], {})


@pytest.mark.parametrize("training", [False, True])
def test_capture_changes_nothing_that_the_model_computes(training):
    x, found = images(), []
    for names in (None, ["0.layer1", "0.layer2.0", "0.relu"]):
        torch.manual_seed(1)
        model, given = nn.Sequential(resnet(), nn.Dropout(0.5)).train(training), x.clone()
        with nullcontext() if names is None else capture(model, names):
            output = model(given)
        output.sum().backward()
        assert torch.equal(x, given) and all(module.training == training for module in model.modules())
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found.append([output, model.state_dict(), gradients, torch.get_rng_state()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# --- wrapped models


def test_names_in_a_distributed_model_have_no_module_prefix(process_group):
    inner, x, expected = prepared(resnet)
    model = DistributedDataParallel(inner)
    features = captured(model, expected, x)
    assert_maps_equal(features, expected)
    features["layer1"].sum().backward()
    assert inner.conv1.weight.grad is not None
    assert hooks_of(model) == 0


@pytest.mark.parametrize("part", [False, True])
def test_data_parallel_adds_nothing_to_a_name(part):
    model, x, expected = prepared(nested)
    if part:
        model[0] = nn.DataParallel(model[0])
    else:
        model = nn.DataParallel(model)
    assert_maps_equal(captured(model, expected, x), expected)


# --- compiled models


def compiled_model(model):
    return torch.compile(model, backend="eager", fullgraph=True)


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


every_compiler = pytest.mark.parametrize("compiled", [compiled_model, compiled_in_place])
inside_compiled = r"layer 'layer1.0' lies inside a compiled module.*the model from before torch.compile"


@every_compiler
@compiler_reads_grad
def test_layer_inside_a_compiled_model_is_an_error_cold_and_warm(fresh_compiler, compiled):
    model = compiled(resnet().eval())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=inside_compiled), capture(model, ["layer1.0"]):
            pass
        assert hooks_of(model) == 0
        model(images())


def test_layer_inside_a_compiled_distributed_model_is_the_same_error(fresh_compiler, process_group):
    inside_out = DistributedDataParallel(compiled_model(resnet()))
    outside_in = compiled_model(DistributedDataParallel(resnet()))  # the order torch advises
    for model in (inside_out, outside_in):
        with pytest.raises(RuntimeError, match=inside_compiled), capture(model, ["layer1.0"]):
            pass


@every_compiler
@pytest.mark.parametrize(("warm", "mode"), [(False, torch.no_grad), (True, torch.inference_mode)])
def test_block_compiled_by_itself_is_captured_by_its_own_name(fresh_compiler, compiled, warm, mode):
    model, names = trained(resnet()), ["maxpool", "layer1", "layer2"]
    batches, state = [images() for _ in range(3)], copy.deepcopy(model.state_dict())
    expected = [resnet_by_hand(state, x) for x in batches]
    model.layer1 = compiled(model.layer1)
    with mode():
        if warm:
            model(batches[0])
        for x, maps in zip(batches, expected, strict=True):
            assert_maps_equal(captured(model, names, x), maps, names)
        with capture(model, ["layer1"]) as features:
            for x in batches:
                model(x)
    torch.testing.assert_close(features.all("layer1"), [maps["layer1"] for maps in expected])
    assert hooks_of(model) == 0


@compiler_reads_grad
@every_compiler
def test_gradients_flow_through_a_block_compiled_by_itself(fresh_compiler, compiled):
    model, x, expected = prepared(nested)
    weight = model[0][0].weight
    (plain,) = torch.autograd.grad(captured(model, ["1"], x)["1"].sum(), weight)
    model[1] = compiled(model[1])
    features = captured(model, ["1"], x)
    assert_maps_equal(features, expected, ["1"])
    torch.testing.assert_close(torch.autograd.grad(features["1"].sum(), weight)[0], plain)


def test_only_layers_inside_the_compiled_block_are_an_error(fresh_compiler):
    model, x, expected = prepared(resnet)
    model.layer1 = torch.compile(model.layer1, backend="eager")
    with pytest.raises(RuntimeError, match=inside_compiled), capture(model, ["layer2.0", "layer1.0"]):
        pass
    with torch.no_grad(), capture(model, ["layer2.0"]) as features:
        model(x)
        assert hooks_of(model.layer1._orig_mod) == 0  # a hook inside would have it compiled anew
    assert_maps_equal(features, expected, ["layer2.0"])


def test_block_compiled_in_place_is_not_compiled_again_for_every_step(fresh_compiler):
    counter = torch._dynamo.testing.CompileCounter()
    net = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ELU()), nn.Flatten())
    net[0].compile(backend=counter)
    x = torch.rand(2, 1, 5, 5)
    for _ in range(10):
        features = captured(net, ["0"], x, transform=lambda name, h: h.amax(1))
        assert torch.equal(features["0"], net[0][1](net[0][0](x)).amax(1))
    assert counter.frame_count == 1


# --- layers that ran more or less than once


def siamese():
    parts = {"backbone": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), "unused": nn.Conv2d(3, 4, 3)}
    return Net(lambda net, pair: net.backbone(pair[0]) * net.backbone(pair[1]), **parts)


def test_every_call_is_recorded_in_order_and_one_map_of_two_is_an_error():
    model, (a, b) = siamese(), (images(), images())
    with capture(model, ["backbone"]) as features:
        model((a, b))
        assert "backbone" in features
        with pytest.raises(RuntimeError, match=r"'backbone' ran 2 times .*all\('backbone'\) gives the list"):
            features["backbone"]
        model((b, a))
    weight, bias = model.backbone[0].weight, model.backbone[0].bias
    expected = [F.conv2d(x, weight, bias).clamp(min=0) for x in (a, b, b, a)]
    torch.testing.assert_close(features.all("backbone"), expected)


@pytest.mark.parametrize(("name", "run"), [("backbone", False), ("unused", True)])
def test_layer_that_never_ran_is_an_error(name, run):
    model = siamese()
    with capture(model, [name]) as features:
        if run:
            model((images(), images()))
    message = f"layer '{name}' never ran while it was captured: call the model inside the with block"
    for read in (features.__getitem__, features.all):
        with pytest.raises(RuntimeError, match=message):
            read(name)


def test_modules_that_refer_to_their_parent_are_walked_once():
    parent = nn.Sequential(nn.Conv2d(1, 4, 3))
    parent[0].parent = parent
    with capture(parent, ["0"]) as features:
        out = parent(torch.rand(2, 1, 5, 5))
    assert features["0"] is out


# --- names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layer3", r"no layer 'layer3'; did you mean .*layer[12]"),
        ("layer1.0.rleu", r"no layer 'layer1.0.rleu'; did you mean .*layer1.0.relu"),
        ("module.layer1", r"no layer 'module.layer1'; did you mean .*layer1"),
        ("@@@", r"no layer '@@@'; choose from conv1, bn1, relu, maxpool, layer1, layer1.0, "),
    ],
)
def test_unknown_name_is_a_key_error_with_the_closest_names(name, message):
    with pytest.raises(KeyError, match=message):
        captured(resnet(), ["layer1", name], images())


@pytest.mark.parametrize("iterable", [list, tuple, iter, dict.fromkeys])
def test_features_are_a_mapping_and_names_may_repeat(iterable):
    model, x, expected = prepared(sequential)
    with capture(model, iterable(["2", "0", "2", "2"])) as features:
        assert "2" in features and repr(features) == "Features(2: [], 0: [])"
        model(x)
    assert (len(features), list(features.keys())) == (2, ["2", "0"])
    assert "2" in features and "1" not in features and features.get("1") is None
    assert_maps_equal(dict(features), expected, ["2", "0"])
    assert torch.equal(features.all("0")[0], features["0"]) and len(features.all("0")) == 1
    assert repr(features) == "Features(2: [(2, 4, 10, 10)], 0: [(2, 4, 10, 10)])"
    for read in (features.__getitem__, features.all):
        with pytest.raises(KeyError, match="layer '1' was not captured; captured: 2, 0"):
            read("1")
    with pytest.raises(KeyError, match="layer '1' was not captured; captured: none"):
        captured(model, [], x)["1"]


# --- outputs that are no maps


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (lambda x: x.mean((2, 3)), r"a tensor of shape \(2, 3\)"),
        (lambda x: x[:, :, None], r"a tensor of shape \(2, 3, 1, 12, 12\)"),
        (lambda x: x.sum(), r"a tensor of shape \(\)"),
        (lambda x: (x, 3), r"a tuple of 2 \(a tensor of shape \(2, 3, 12, 12\), a int\)"),
        (lambda x: [x], r"a list of 1 \(a tensor of shape \(2, 3, 12, 12\)\)"),
        (lambda x: {"out": x, "aux": x}, "a dict with keys out, aux"),
        (lambda x: None, "a NoneType"),
    ],
)
def test_an_output_that_is_no_batch_of_maps_is_described(output, described):
    message = rf"layer '1' returned {described}; capture needs one tensor of shape \(B, C, H, W\)"
    with pytest.raises(TypeError, match=message):
        captured(nn.Sequential(nn.Identity(), Function(output)), ["1"], images())


# --- layers overwritten in place


@with_versions
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bn1", r"'bn1' was overwritten in place by 'relu' .*capture 'relu' instead$"),
        ("layer1.1.bn1", r"by 'layer1.1.relu' .*\(it ran 2 times: features.all\), or give it inplace=False"),
        ("layer1.1.bn2", r"by 'layer1.1.relu' .*\(it ran 2 times: features.all\), or give it inplace=False"),
    ],
)
def test_layer_overwritten_by_an_activation_is_an_error_that_names_it(mode, name, message):
    with mode():
        features = captured(trained(resnet()), [name], images())
    for read in (features.__getitem__, features.all):
        with pytest.raises(RuntimeError, match=message):
            read(name)


def test_shared_activation_and_its_block_can_be_captured():
    model, x, expected = prepared(resnet)
    features = captured(model, ["layer1.1.relu", "layer1.1"], x)
    first = norm(expected["layer1.1.conv1"], model.state_dict(), "layer1.1.bn1").clamp(min=0)
    torch.testing.assert_close(features.all("layer1.1.relu"), [first, expected["layer1.1"]])
    torch.testing.assert_close(features["layer1.1"], expected["layer1.1"])


def writes_in_place(operation, returns_it):
    """An operation writes into what ``bn`` returned; the block returns the same tensor or a new one."""

    def forward(net, x):
        out = net.bn(x)
        operation(out)
        return out if returns_it else out * 1

    return nn.Sequential(nn.Identity(), Net(forward, bn=nn.BatchNorm2d(3)))


def add_in_place(x):
    x += 1


IN_PLACE = {
    "x += y": add_in_place,
    "F.relu": lambda x: F.relu(x, inplace=True),
    "slice": lambda x: x[:, :1].zero_(),
}


@with_versions
@pytest.mark.parametrize("operation", IN_PLACE.values(), ids=IN_PLACE.keys())
@pytest.mark.parametrize(
    ("returns_it", "message"),
    [
        (
            False,
            r"'1.bn' was overwritten in place after it ran, by an operation that is not a module \(x \+= y",
        ),
        (True, r"'1.bn' was overwritten in place by '1' .*capture '1' instead$"),
    ],
)
def test_layer_overwritten_by_a_function_is_an_error_that_says_so(mode, operation, returns_it, message):
    model = writes_in_place(operation, returns_it)
    with mode(), capture(model, ["1.bn", "1"]) as features:
        output = model(images())
    with pytest.raises(RuntimeError, match=message):
        features["1.bn"]
    assert torch.equal(features["1"], output)


PARTS = nn.ModuleDict({"bn": nn.BatchNorm2d(3), "relu": nn.ReLU(inplace=True), "conv": nn.Conv2d(3, 3, 1)})


def test_activation_and_then_a_function_is_blamed_on_the_function():
    with capture(PARTS, ["bn", "relu"]) as features:
        out = PARTS["relu"](PARTS["bn"](images()))
        out += 1
    for name in features:
        with pytest.raises(RuntimeError, match=rf"'{name}' was overwritten .*not a module.*out of place"):
            features[name]


def test_one_overwritten_call_of_several_is_an_error():
    with capture(PARTS, ["bn"]) as features:
        PARTS["bn"](images())
        PARTS["relu"](PARTS["bn"](images()))
    with pytest.raises(RuntimeError, match=r"'bn' was overwritten in place by 'relu'"):
        features.all("bn")


def test_input_overwritten_in_place_is_not_mistaken_for_the_output():
    x = images()
    expected = F.conv2d(x, PARTS["conv"].weight, PARTS["conv"].bias)
    with capture(PARTS, ["conv"]) as features:
        PARTS["conv"](x)
        PARTS["relu"](x)
    torch.testing.assert_close(features["conv"], expected)


def test_inference_mode_keeps_the_values_of_a_layer_overwritten_later():
    model, x, maps = prepared(resnet)
    expected = {"bn1": norm(maps["conv1"], model.state_dict(), "bn1"), "layer1": maps["layer1"]}
    expected["layer1.0.bn2"] = norm(maps["layer1.0.conv2"], model.state_dict(), "layer1.0.bn2")
    assert expected["bn1"].min() < 0
    with torch.inference_mode():
        assert_maps_equal(captured(model, expected, x), expected)


def test_a_layer_whose_transform_failed_counts_as_not_run() -> None:
    model = nn.Sequential(nn.Identity())
    with capture(model, ["0"], transform=lambda name, h: h.reshape(-7)) as features:
        with pytest.raises(RuntimeError, match="invalid shape dimension"):
            model(images())
    with pytest.raises(RuntimeError, match="never ran while it was captured"):
        features["0"]


def test_parametrizations_of_weights_are_no_layers() -> None:
    """Their modules run inside the layer that they belong to, and return weights."""
    model, x = with_symmetric(sequential()), torch.rand(2, 3, 9, 9)
    assert [name for name, _, _ in walk(model)] == ["", "0", "1", "2", "3"]
    with capture(model, ["2", "3"]) as features:
        output = model(x)
    assert torch.equal(features["3"], output) and torch.equal(features["2"], model[:3](x))
    for name in ("3.parametrizations.weight", "3.parametrizations.weight.0", "3.parametrization"):
        with pytest.raises(KeyError, match=r"no layer '3\.param.*'; choose from 0, 1, 2, 3 "):
            with capture(model, name):
                pass
    assert all(not module._forward_hooks for module in model.modules())


def test_one_model_in_two_threads_is_told_and_two_models_are_fine() -> None:
    """Both passes are inside their blocks at the same time, by a barrier and not by chance."""
    both = threading.Barrier(2, timeout=60)

    class Meeting(nn.Conv2d):
        def forward(self, x):
            both.wait()  # the hooks of both threads are in place
            h = super().forward(x)
            both.wait()
            return h

    def run(model) -> object:
        try:
            return ien.EquivarianceLoss("rot4", ["0"], 4)(model, torch.rand(2, 1, 5, 5)).loss
        except RuntimeError as error:
            return str(error)

    one = nn.Sequential(Meeting(1, 4, 3))
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(run, [one, one]))
        assert any("layer '0' ran 2 times in one forward pass" in str(text) for text in said)
        losses = list(pool.map(run, [one, copy.deepcopy(one)]))
    assert all(isinstance(loss, torch.Tensor) and loss.isfinite() for loss in losses)
    assert not one[0]._forward_hooks
