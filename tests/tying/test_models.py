"""Networks of all kinds: tied in one call, exact after training, and plain again at the end."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import ien
from tests.helpers import exact, zoo

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*independent features"),  # these networks are small
    pytest.mark.filterwarnings("ignore:.*no layer can be split into them"),  # a group norm that cuts
]

LARGEST_SHARE = {"flip": 0.55, "rot4": 0.4, "rot8": 0.3, "rot4xflip": 0.16}
"""Bounds on what is stored: about one number in as many as a group has elements, more for single channels."""
REPARAMETRIZED = ("weight norm", "spectral norm")
"""Networks whose weights were computed from other numbers before they were tied."""


def kinds(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}


def hooks(model: nn.Module) -> int:
    count = 0
    for module in model.modules():
        count += len(module._forward_hooks) + len(module._forward_pre_hooks)
        count += len(module._backward_hooks) + len(module._backward_pre_hooks)
        count += len(module._state_dict_hooks) + len(module._load_state_dict_pre_hooks)
    return count


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in model.state_dict().items()}


def numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def batch_norms_train(model: nn.Module) -> nn.Module:
    """With statistics of the batch; other layers, such as spectral norms, give the same twice."""
    for module in model.eval().modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.train()
    return model


@torch.no_grad()
def outputs(model: nn.Module, entry: zoo.Entry) -> list[Tensor]:
    """What a model returns in eval mode for images that it was not trained on."""
    return exact.returned(model.eval(), entry, entry.images(seed=7))


@pytest.mark.parametrize("quarters", range(4))
@pytest.mark.parametrize("flipped", [False, True])
def test_the_ruler_moves_vectors_as_it_moves_images(quarters: int, flipped: bool) -> None:
    def centre(image: Tensor) -> Tensor:  # (1, 1, 5, 5) → (1, 2)
        places = torch.arange(-2.0, 3.0)
        dx, dy = (image.sum(2) * places).sum(2), (image.sum(3) * places).sum(2)
        return torch.cat([dx, dy], 1)

    image = torch.rand(1, 1, 5, 5)
    found = centre(exact.rotated(image, quarters, flipped))
    torch.testing.assert_close(found, exact.vectors_rotated(centre(image), quarters, flipped))


def test_a_quarter_turn_takes_right_to_up() -> None:
    assert exact.vectors_rotated(torch.tensor([[1.0, 0.0]]), 1, False).tolist() == [[0.0, -1.0]]


@dataclass
class Life:
    """A network that was tied and trained for a few steps."""

    name: str
    entry: zoo.Entry
    before: nn.Module
    model: nn.Module
    tied: ien.Tied
    optimizer: torch.optim.Optimizer


@pytest.fixture(scope="module", params=zoo.ZOO)
def life(request: pytest.FixtureRequest) -> Iterator[Life]:
    torch.manual_seed(0)
    entry = zoo.ZOO[request.param]
    model = entry.make()
    before = copy.deepcopy(model)
    tied = ien.make_equivariant(model, entry.group, entry.images(), **entry.settings())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    exact.train(model, entry, optimizer)
    yield Life(request.param, entry, before, model, tied, optimizer)


def test_it_stays_exact_in_both_modes(life: Life) -> None:
    assert exact.error(life.before.eval(), life.entry) > 0.02  # what is looked at can break
    assert exact.error(life.model.eval(), life.entry) < exact.ROUNDING
    assert exact.error(batch_norms_train(life.model), life.entry) < exact.ROUNDING


def test_its_table_names_every_layer_and_the_share_that_is_stored(life: Life) -> None:
    text = str(life.tied)
    assert life.entry.group in text and f"{life.tied.share:.0%}" in text
    for name in life.tied.layers:
        assert name in text
    for name, module in life.before.named_modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            all_stored = numbers(life.model.get_submodule(name)) == numbers(module)
            assert name in life.tied.layers or all_stored


def test_its_errors_are_those_of_every_element(life: Life) -> None:
    assert set(life.tied.errors) == set(ien.group(life.entry.group).labels[1:])
    for label, value in life.tied.errors.items():
        if "45" not in label and "135" not in label and "225" not in label and "315" not in label:
            assert value < exact.ROUNDING, label


def test_only_independent_numbers_are_stored(life: Life) -> None:
    share = numbers(life.model) / numbers(life.before)
    assert abs(life.tied.share - share) < 1e-9
    if life.name not in REPARAMETRIZED:  # whose own numbers stay
        assert share < LARGEST_SHARE[life.entry.group]


def test_a_plain_copy_leaves_training_alone(life: Life) -> None:
    plain = ien.plain_copy(life.model)
    assert_plain(plain, life)
    before = copy.deepcopy(life.model.state_dict())
    exact.train(life.model, life.entry, life.optimizer, 2)
    moved = [key for key, value in life.model.state_dict().items() if not torch.equal(value, before[key])]
    assert moved
    assert exact.error(life.model, life.entry) < exact.ROUNDING
    assert not torch.equal(outputs(plain, life.entry)[0], outputs(life.model, life.entry)[0])


def test_it_becomes_plain_without_a_trace(life: Life) -> None:
    model = copy.deepcopy(life.model)
    ien.make_plain(model)
    assert_plain(model, life)
    assert exact.error(life.model.eval(), life.entry) < exact.ROUNDING  # of which it was a copy


def assert_plain(plain: nn.Module, life: Life) -> None:
    """Keys, shapes and classes are those that the network came with; outputs are equal to the bit."""
    before = life.before
    if life.name in REPARAMETRIZED:  # these become the weight that they computed
        before = zoo.reparametrized(lambda layer: layer)
    else:
        assert list(plain.state_dict()) == list(before.state_dict())
        assert [*dict(plain.named_parameters())] == [*dict(before.named_parameters())]
        assert hooks(plain) == hooks(before)
    assert shapes(plain) == shapes(before)
    assert kinds(plain) == kinds(before)
    assert not any(parametrize.is_parametrized(module) for module in plain.modules())
    found = outputs(plain, life.entry)
    torch.testing.assert_close(found, outputs(life.model, life.entry), rtol=0, atol=0)
    fresh = copy.deepcopy(before)
    fresh.load_state_dict(plain.state_dict())  # any code that knows the network can load it
    torch.testing.assert_close(outputs(fresh, life.entry), found, rtol=0, atol=0)


@pytest.mark.parametrize("feature_groups", ["auto", 4, {"": 4}, {"": 4, "head": 1}], ids=str)
def test_four_classes_are_not_permuted(feature_groups: Any) -> None:
    entry = zoo.ZOO["unet"]
    model = entry.make()
    ien.make_equivariant(model, "rot4", entry.images(), feature_groups)
    assert exact.error(model.eval(), entry) < exact.ROUNDING


def test_classes_are_a_feature_group_if_their_layer_is_named() -> None:
    entry = zoo.ZOO["unet"]
    model, x = entry.make().eval(), entry.images()
    ien.make_equivariant(model, "rot4", x, {"": 4, "head": 4})
    with torch.no_grad():
        expected, found = model(x).rot90(1, (2, 3)), model(x.rot90(1, (2, 3)))
    torch.testing.assert_close(found, expected.roll(1, 1), rtol=1e-4, atol=1e-5)
    assert exact.error(model, entry) > 0.02


def test_a_shared_weight_stays_shared() -> None:
    entry = zoo.ZOO["shared weight"]
    model = entry.make()
    ien.make_equivariant(model, "rot4", entry.images())
    originals = [model[i].parametrizations.weight.original for i in (2, 4)]
    assert originals[0] is originals[1]
    exact.train(model, entry, torch.optim.Adam(model.parameters(), lr=0.01))
    assert torch.equal(model[2].weight, model[4].weight)
    ien.make_plain(model)
    assert model[2].weight is model[4].weight


@pytest.mark.parametrize("name", ["bottleneck", "unet", "convnext"])
@pytest.mark.parametrize("kernels", ["free", "smooth"])
def test_weights_that_are_equivariant_are_their_own_projection(name: str, kernels: Any) -> None:
    entry = zoo.ZOO[name]
    model = entry.make()
    ien.make_equivariant(model, "rot4", entry.images(), kernels=kernels)
    plain = ien.plain_copy(model)
    before = copy.deepcopy(dict(plain.named_parameters()))
    tied = ien.make_equivariant(plain, "rot4", entry.images(), weights="project", kernels=kernels)
    ien.make_plain(plain)
    for key, value in plain.named_parameters():
        torch.testing.assert_close(value, before[key])
    assert max(layer.distance for layer in tied.layers.values()) < 1e-5


def test_eighth_turns_move_maps_and_members() -> None:
    model = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 1)).eval()
    ien.make_equivariant(model, "rot8", torch.rand(4, 1, 33, 33))
    smooth = nn.functional.interpolate(torch.randn(4, 1, 6, 6), size=(33, 33), mode="bicubic")
    rotation, eighth = ien.rotation(8), torch.ones(4, dtype=torch.int64)
    with torch.no_grad():
        h, h_turned = model[0](smooth), model[0](rotation.act(smooth, eighth))
    moved = rotation.act(h, eighth).unflatten(1, (2, 8)).roll(1, 2).flatten(1, 2)  # members go round
    inside = (..., slice(10, 23), slice(10, 23))  # away from the border
    assert (h_turned - moved)[inside].square().mean() < 1e-3 * moved[inside].var()
