"""Nothing on a device needs float64, is on another device, or makes a GPU wait unseen.

A device without float64 is played by the CPU (``tests.helpers.device``), so its results are those of
the CPU. A GPU is pretended (``tests.helpers.pretended``): it has no results, and tells what waits.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

import ien
from ien.geometry.exactness import is_symmetric
from ien.tracking.tracker import Tracker
from ien.tracking.training.task import TRACK_TARGETS
from ien.training import ALONE
from ien.training.evaluate import evaluate
from ien.training.loop import take_step
from ien.training.network import optimizer_of
from tests.helpers import toy, toy_clips
from tests.helpers.device import DEVICE, device_without_float64
from tests.helpers.losses import D4, R8, images
from tests.helpers.pretended import Pretended, pretended

GROUPS = [R8, D4, ien.scale([0.7, 1.4])]
NO_CUDA = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="autograd needs a torch with CUDA")
PRETENDED = ["meta", pytest.param("cuda", marks=NO_CUDA)]
"""A torch without CUDA has no autograd for fake tensors on it; those on ``meta`` behave alike."""


def classifier() -> nn.Sequential:
    """A small net with a BatchNorm, a stride and five classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


@pytest.fixture
def any_device(monkeypatch) -> None:
    """Let runs use the device ``meta``, which plays another one here."""
    monkeypatch.setattr("ien.training.sections.Machine.__post_init__", lambda machine: None)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]


def test_the_device_refuses_float64_however_it_comes_about() -> None:
    x = torch.rand(3)
    with device_without_float64() as device:
        there = x.to(device)
        assert there.device == device and torch.equal(there.cpu(), x)
        for conversion in (
            there.double,
            lambda: there.to("cpu", torch.float64),
            lambda: torch.zeros(3, dtype=torch.float64, device=device),
            lambda: x.double().to(device),
            lambda: torch.zeros(3, dtype=torch.float64).copy_(there),
            lambda: there.sum(dtype=torch.float64),
        ):
            with pytest.raises(TypeError, match="float64"):
                conversion()
        with pytest.raises(RuntimeError, match="same device"):
            there + x
        assert there.cpu().double().dtype == torch.float64
        assert x.double().to(device, torch.float32).dtype == torch.float32


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_targets_on_the_device_are_those_on_the_cpu(group) -> None:
    g = torch.arange(len(group))
    masks, numbers = torch.randint(9, (len(g), 7, 7)), torch.rand(len(g), 3, 4).sort().values
    with device_without_float64() as device:
        moved = [
            group.act_on_masks(masks.to(device), g),
            group.act_on_boxes(numbers.to(device), g, (7, 7)),
            group.act_on_points(numbers[..., :2].to(device), g, (7, 7)),
            group.act_on_angles(numbers.to(device), g),
        ]
        assert all(each.device == device for each in moved)
        moved = [each.cpu() for each in moved]
    assert torch.equal(moved[0], group.act_on_masks(masks, g))
    torch.testing.assert_close(moved[1], group.act_on_boxes(numbers, g, (7, 7)))
    torch.testing.assert_close(moved[2], group.act_on_points(numbers[..., :2], g, (7, 7)))
    torch.testing.assert_close(moved[3], group.act_on_angles(numbers, g))


ACTIONS = [(group, "pooled") for group in GROUPS] + [(R8, "regular"), (D4, "regular")]


@pytest.mark.parametrize(("group", "action"), ACTIONS, ids=str)
def test_the_loss_and_its_gradients(group, action) -> None:
    model, x = classifier(), images(7, 13, torch.float32)
    objective = ien.EquivarianceLoss(group, ["2", "4"], 8, samples=2, normalize=True, action=action)
    g = objective.sample(7)
    expected = objective(model, x, g=g).loss
    expected.backward()
    elsewhere = copy.deepcopy(model)
    elsewhere.zero_grad()
    with device_without_float64() as device:
        elsewhere.to(device)
        out = objective(elsewhere, x.to(device), g=g)
        out.loss.backward()
        assert out.loss.device == device
        torch.testing.assert_close(out.loss.cpu(), expected)
        torch.testing.assert_close(gradients(elsewhere), gradients(model))


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_measure_and_its_floors(group) -> None:
    model, x, labels = classifier(), images(9, 13, torch.float32), torch.arange(9) % 5
    expected = ien.measure(model, x, group, labels=labels, feature_groups=1, batch_size=4)
    with device_without_float64() as device:
        report = ien.measure(model.to(device), x, group, labels=labels, feature_groups=1, batch_size=4)
        assert report == expected


@pytest.mark.parametrize("kernels", ["smooth", "free"])
@pytest.mark.parametrize("group", ["rot4", "rot8"])
def test_tied_weights_and_a_step_with_them(group, kernels) -> None:
    x, y = images(8, 13, torch.float32), torch.arange(8) % 5
    layers = [nn.Conv2d(1, 48, 3), nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 48, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 5))
    elsewhere = copy.deepcopy(model)

    def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        ien.make_equivariant(model, group, x, kernels=kernels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.eval()(x)
        plain = ien.plain_copy(model).state_dict()
        assert plain.keys() == ien.make_plain(model).state_dict().keys()
        return {name: weight.cpu() for name, weight in plain.items()}

    expected = trained(model, x, y)
    with device_without_float64() as device:
        weights = trained(elsewhere.to(device), x.to(device), y.to(device))
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


def test_the_doctor_looks_at_kernels_on_the_device() -> None:
    kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])
    with device_without_float64() as device:
        assert is_symmetric(kernel.to(device))
        assert not is_symmetric(kernel.triu().to(device))


@pytest.mark.parametrize(
    "changes", [{}, {"normalize": True, "shift": 2, "mirror": True, "cutout": 4}], ids=str
)
def test_a_step_of_a_classifier_and_its_test(toy_data, any_device, changes) -> None:
    expected = toy.task(**changes)
    values = []
    for step, batch in enumerate(itertools.islice(expected.batches(0, 0), 3)):
        values.append(take_step(expected, batch, 0, step))
    data = toy.dataset()
    record = evaluate(expected.config, expected.network, data.test_x[:20], data.test_y[:20])
    with device_without_float64():
        task = toy.task(device=DEVICE.type, **changes)
        assert next(task.network.parameters()).device == DEVICE
        for step, batch in enumerate(itertools.islice(task.batches(0, 0), 3)):
            # its optimizer has no fused kernel, which rounds otherwise
            torch.testing.assert_close(take_step(task, batch, 0, step), values[step], rtol=1e-4, atol=1e-6)
        again = evaluate(task.config, task.network, data.test_x[:20], data.test_y[:20])
        assert again["accuracy"] == pytest.approx(record["accuracy"], abs=0.051)
        for name, layer in record["layers"].items():
            assert again["layers"][name]["relative"] == pytest.approx(layer["relative"], rel=1e-2)


def test_a_step_of_a_tracker_and_an_update(one_thread, any_device) -> None:
    clips = toy_clips.clips()
    expected = TRACK_TARGETS.prepare(toy_clips.config(), clips, ALONE)
    batch = next(expected.batches(0, 0))
    values = take_step(expected, batch, 0, 0)
    clip = next(iter(clips.tests.values()))[0]

    def tracked(network: nn.Module) -> object:
        tracker = Tracker(network, rotations=4)
        tracker.init(clip.frame(0), clip.boxes[0])
        return tracker.update(clip.frame(1)).box.tolist()

    box = tracked(expected.network)
    with device_without_float64():
        task = TRACK_TARGETS.prepare(toy_clips.config(device=DEVICE.type), clips, ALONE)
        torch.testing.assert_close(take_step(task, batch, 0, 0), values)
        assert tracked(task.network) == pytest.approx(box, abs=0.01)


def test_the_loss_on_tensors_without_values() -> None:
    objective = ien.EquivarianceLoss(R8, ["2", "4"], 4)
    model = classifier().to("meta")
    out = objective(model, torch.empty(7, 1, 13, 13, device="meta"))
    out.loss.backward()
    assert out.loss.is_meta and out.loss.dtype == torch.float32 and out.output.shape == (14, 5)
    assert {parameter.grad.dtype for parameter in model[:4].parameters()} == {torch.float32}


@pytest.mark.parametrize("device", PRETENDED)
def test_the_pretended_gpu_refuses_mixed_devices_and_tells_what_waits(device) -> None:
    places = torch.tensor([2, 0])

    def wrong(x: Tensor) -> Tensor:
        """Forgets to move its indices."""
        return x.index_select(0, places)

    with pretended(device) as gpu:
        x = torch.rand(3, 5, device=gpu.device)
        for mixed in (wrong, lambda x: x[:2].gather(0, places.view(1, 2)), lambda x: x + torch.rand(5)):
            with pytest.raises(RuntimeError, match="two devices"):
                mixed(x)
        for read in (lambda: x.sum().item(), x.tolist, lambda: bool(x.any())):
            with pytest.raises(DataDependentOutputException):
                read()
        for count in (x.nonzero, lambda: x[x > 0.5]):
            with pytest.raises(DynamicOutputShapeException):
                count()
        assert gpu.waits == []
        assert x[places].device == gpu.device
        assert gpu.waits == ["index by indices on the CPU"]
        assert x.index_select(0, places.to(gpu.device)).shape == (2, 5) and x.cpu().device.type == "cpu"
        assert gpu.waits[1:] == [f"_to_copy from cpu to {device}", f"_to_copy from {device} to cpu"]
        assert gpu.sent == 0
        places.to(gpu.device, non_blocking=True)
        assert gpu.sent == 1 and len(gpu.waits) == 3


def waits_of(gpu: Pretended, step: Callable[[], object]) -> list[str]:
    """What waits in a step after the first one, which may prepare tables that are kept."""
    step()
    gpu.waits.clear()
    step()
    return gpu.waits


@pytest.mark.parametrize("device", PRETENDED)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_action_the_pool_and_the_error_stay_on_the_gpu_and_never_wait(group, device) -> None:
    g = torch.tensor([1, 2, 1, 0])  # not in runs: images are sorted, and put back in order
    with pretended(device) as gpu:
        h = torch.rand(4, 11, 9, 9, device=gpu.device, requires_grad=True)
        masks = torch.zeros(4, 9, 9, dtype=torch.long, device=gpu.device)
        boxes = torch.rand(4, 3, 4, device=gpu.device)

        def step() -> None:
            pooled = ien.group_pool(h, "4-2-1")
            error = ien.equivariance_loss(pooled, group.act(pooled, g), group, g, normalize=True)
            h.grad = None
            error.backward()
            targets = [
                group.act_on_masks(masks, g),
                group.act_on_boxes(boxes, g, (9, 9)),
                group.act_on_points(boxes[..., :2], g, (9, 9)),
                group.act_on_angles(boxes, g),
            ]
            assert pooled.shape == (4, 4, 9, 9)
            assert all(each.device == gpu.device for each in (error, h.grad, *targets))

        assert waits_of(gpu, step) == []
        assert gpu.sent > 0  # so it was counted


@pytest.mark.parametrize("device", PRETENDED)
@pytest.mark.parametrize(("group", "action"), ACTIONS, ids=str)
@pytest.mark.parametrize("target", [None, 0.1])
def test_the_objective_stays_on_the_gpu_and_never_waits(group, action, target, device) -> None:
    objective = ien.EquivarianceLoss(group, ["2", "4"], 8, normalize=True, action=action, target=target)
    g = torch.arange(8) % (len(group) - 1) + 1
    model = classifier()
    with pretended(device) as gpu:
        model.to(gpu.device)
        x = torch.rand(8, 1, 13, 13, device=gpu.device)

        def step() -> None:
            out = objective(model, x, g=g)
            out.loss.backward()
            assert out.loss.device == gpu.device

        assert waits_of(gpu, step) == []
        assert {gradient.device for gradient in [model[0].weight.grad, model[3].weight.grad]} == {gpu.device}


@pytest.mark.parametrize("device", PRETENDED)
@pytest.mark.parametrize("slack", [0.0, 0.5])
@pytest.mark.parametrize("feature_groups", [4, "4-2-1"])
@pytest.mark.parametrize(("group", "kernels"), [("rot4", "smooth"), ("rot4", "free")])
def test_tied_weights_stay_on_the_gpu_and_never_wait(group, kernels, feature_groups, slack, device) -> None:
    layers = [nn.Conv2d(1, 44, 3), nn.BatchNorm2d(44), nn.ReLU(), nn.Conv2d(44, 44, 3), nn.BatchNorm2d(44)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(44, 5))
    x = images(2, 13, torch.float32)
    tied = ien.make_equivariant(model, group, x, feature_groups=feature_groups, kernels=kernels, slack=slack)
    with pretended(device) as gpu:
        model.to(gpu.device)
        for remainder in tied.remainders.values():
            # as after the first step, in which a GPU tells once that it is open
            remainder.read = (remainder.closed, remainder.closed._version, False)
        x = torch.rand(8, 1, 13, 13, device=gpu.device)

        def step() -> None:
            model.zero_grad()
            (model(x).square().sum() + tied.penalty()).backward()

        with mock.patch("ien.tying.slack._is_readable", lambda tensor: True):
            assert waits_of(gpu, step) == []
        assert {gradient.device for gradient in [p.grad for p in model.parameters()]} == {gpu.device}
        model.eval()
        with torch.no_grad():
            assert model(x).device == gpu.device


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "rot4xflip", "feature_groups": "8"},
        {"normalize": True, "action": "regular"},
        {"transform": True, "rotate": True, "shift": 2, "mirror": True, "cutout": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("device", PRETENDED)
def test_a_step_of_a_run_waits_for_the_gpu_once(toy_data, device, changes) -> None:
    task = toy.task(**changes)
    batch = next(task.batches(0, 0))
    with pretended(device) as gpu:
        network = task.network.to(gpu.device)
        tensors = {name: getattr(task, name).to(gpu.device) for name in ("x", "y", "colour")}
        optimizer = optimizer_of(task.config, network)
        task = replace(task, network=network, model=network, optimizer=optimizer, **tensors)

        assert waits_of(gpu, lambda: take_step(task, batch, 0, 0)) == [f"_to_copy from {device} to cpu"]
