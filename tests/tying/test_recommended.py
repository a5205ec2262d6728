"""The recommended setting: one call prepares the model, its optimizer, and the objective."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien import models
from ien.experiments.rows import RECOMMENDED
from tests.helpers.tied import Net, assert_same_weights, state

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = ["2", "6"]


def net(channels: int = 8) -> nn.Sequential:
    """A classifier with two convolutions, whose :data:`LAYERS` follow their norms."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, padding=2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 3),
    )


def prepared(model, *arguments, **settings) -> ien.Recommended:
    return ien.recommended(model, *arguments, optimizer=torch.optim.Adam(model.parameters()), **settings)


@pytest.mark.parametrize(
    ("make", "group", "feature_groups", "layers", "shape"),
    [
        (net, "rot4", 4, LAYERS, (1, 9, 9)),
        (net, "rot4xflip", 8, LAYERS, (1, 9, 9)),
        (lambda: net(11), "rot4", "4-2-1", LAYERS, (1, 9, 9)),
        (lambda: models.resnet18(4, 1 / 32), "rot4", 4, ["layer1", "layer4"], (3, 17, 17)),
    ],
    ids=["rot4", "rot4xflip", "4-2-1", "resnet18"],
)
def test_there_is_no_loss_before_training_at_exact_sizes(make, group, feature_groups, layers, shape) -> None:
    model, x = make(), torch.rand(3, *shape)
    usual = ien.EquivarianceLoss(group, layers, feature_groups, "all", normalize=True, action="regular")
    before = usual(copy.deepcopy(model), x)
    objective = prepared(model, group, feature_groups, x, layers=layers)
    assert model.training
    out = objective(model.eval(), torch.rand(3, *shape))
    assert before.loss > 0.05 and out.loss < 1e-8
    assert out.views == 2 and set(out.terms) == {(group, name) for name in layers}
    assert isinstance(objective, ien.EquivarianceLoss) and objective.start.group == group


@pytest.mark.parametrize("layers", [(), LAYERS])
@pytest.mark.parametrize(("group", "members"), [("rot4", 4), ("rot8", 8)])
def test_a_few_steps_run_and_the_model_stays_equivariant(group, members, layers) -> None:
    model, x, y = net(members), torch.rand(6, 1, 9, 9), torch.arange(6) % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    objective = ien.recommended(model, group, members, input=x, optimizer=optimizer, layers=layers)
    losses = []
    for _ in range(8):
        out = objective(model, x)
        assert out.views == (2 if layers else 1) and out.output.shape == (6 * out.views, 3)
        task = F.cross_entropy(out.output, out.repeat(y))
        (task + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(task.detach()))
    assert losses[-1] < losses[0]
    report = ien.measure(model, x, group, LAYERS, members, floors=False, action="regular")
    assert all(layer.exact < 1e-8 for layer in report.layers.values())


def test_images_are_shown_under_random_or_given_elements_that_resample() -> None:
    model, x, random = net().eval(), torch.rand(16, 1, 9, 9), torch.get_rng_state()
    objective = prepared(model, "rot8", 8, x)
    assert torch.equal(torch.get_rng_state(), random)  # nothing is drawn before training
    assert repr(objective).endswith("shows images under random elements of rot8)")
    out = objective(model, x, generator=torch.Generator().manual_seed(1))
    assert out.views == 1 and not out.terms and out.loss == 0
    assert out.g.bincount().tolist() == [2] * 8  # each element, the identity too
    shown = torch.cat([ien.rotation(8).act(x[i : i + 1], out.g[i : i + 1]) for i in range(16)])
    torch.testing.assert_close(out.output, model(shown))
    assert len({tuple(objective(model, x).g.tolist()) for _ in range(8)}) > 1  # others in every step

    torch.testing.assert_close(objective(model, x, g=out.g).output, out.output, rtol=0, atol=0)
    drawn = objective.sample(16, torch.Generator().manual_seed(1))  # for a batch that several processes share
    assert torch.equal(drawn, out.g)
    parts = [objective(model, x[part], g=drawn[part]).output for part in (slice(6), slice(6, 16))]
    torch.testing.assert_close(torch.cat(parts), out.output)
    upright = objective(model, x, g=[0] * 16)
    assert torch.equal(upright.g, torch.zeros(16, dtype=torch.int64))
    torch.testing.assert_close(upright.output, model(x))
    with pytest.raises(ValueError, match="holds no images"):
        objective(model, x[:0])
    with pytest.raises(ValueError, match=r"g must be an integer tensor \(16,\)"):
        objective(model, x, g=drawn[:3])


@pytest.mark.parametrize(("group", "members"), [("rot4", 2), ("flip", 2), ("rot4xflip", 8)])
def test_images_are_shown_as_they_are_if_all_elements_are_exact(group, members) -> None:
    model, x = net().eval(), torch.rand(4, 1, 9, 9)
    objective = prepared(model, group, members, x)
    out = objective(model, x)
    assert not objective.transforms and not len(out.g) and repr(objective).startswith("Recommended(")
    torch.testing.assert_close(out.output, model(x), rtol=0, atol=0)
    with pytest.raises(ValueError, match="this objective draws none"):
        objective(model, x, g=torch.zeros(4, dtype=torch.int64))


def test_the_objective_is_the_loss_of_all_members() -> None:
    model, x = net(), torch.rand(2, 1, 9, 9)
    objective = prepared(model, "rot4", 4, x, layers={"2": 0.5, "6": 2.0})
    nn.init.normal_(model[4].weight)
    out = objective(model, x, g=torch.tensor([1, 3]))
    with ien.capture(model, LAYERS) as features:
        model(torch.cat([x, torch.rot90(x[:1], 1, (-2, -1)), torch.rot90(x[1:], 3, (-2, -1))]))
    expected = torch.zeros(())
    for name, beta in objective.layers.items():
        first, second, *views = features[name].unflatten(1, (-1, 4)).split(1)
        for turns, h, h_g in zip((1, 3), (first, second), views, strict=True):
            rotated = torch.rot90(h, turns, (-2, -1)).roll(turns, 2)
            expected = expected + beta * F.mse_loss(h_g, rotated) / 2
    torch.testing.assert_close(out.loss, expected)
    assert out.loss > 0.01


def test_layers_are_compared_in_the_feature_groups_of_their_maps() -> None:
    convolutions = nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(6, 4, 1)
    model, x = nn.Sequential(net()[:3], *convolutions, ien.GroupPool(4)), torch.rand(2, 1, 9, 9)
    sizes = {"": 4, "1": 2}  # by module
    objective = prepared(model, "rot4", sizes, x, layers=["0.2", "1", "2", "3"])
    found = {name: str(spec) for name, spec in objective.feature_groups.items()}
    assert found == {"0.2": "4", "1": "2", "2": "4", "3": "1"} and objective.start.layers["1"].after == "2"
    assert objective(model.eval(), torch.rand(2, 1, 9, 9)).loss < 1e-8
    assert list(prepared(model, "rot4", sizes, x, layers="2").feature_groups) == ["2"]
    with pytest.raises(KeyError, match="feature_groups says nothing about layer"):
        prepared(model, "rot4", {"0": 4, "1": 2}, x)


def concatenating() -> nn.Sequential:
    beside = Net(lambda net, x: torch.cat([x, net.conv(x)], 1), conv=nn.Conv2d(1, 8, 3, padding=1))
    return nn.Sequential(beside, nn.Conv2d(9, 8, 3))


def test_layers_that_are_concatenated_are_compared_by_name() -> None:
    model = concatenating()
    objective = prepared(model, "rot4", 4, torch.rand(2, 1, 9, 9), layers=["0.conv", "1"])
    assert objective(model, torch.rand(2, 1, 9, 9)).loss < 1e-8


def test_it_is_what_experiments_of_that_name_do() -> None:
    model, x = net(), torch.rand(2, 1, 9, 9)
    optimizer = torch.optim.Adam(model.parameters())
    objective = ien.recommended(model, "rot4", 4, x, optimizer)
    random = ien.measure(net(), x, "rot4", LAYERS, 4, action="regular").layers["6"].relative
    objective(model, x).output.square().sum().backward()
    optimizer.step()
    kept = ien.measure(model, x, "rot4", LAYERS, 4, action="regular").layers["6"].relative < 1e-8 < random
    smooth = {tie.smooth for tie in objective.start.ties if tie.name == "weight" and tie.tensor.ndim == 4}
    done = {"start": "equivariant" if kept else "random", "tied": kept}
    done["kernels"] = "smooth" if smooth == {True} else "free"
    assert {**done, "augment": objective.views > 1, "beta": sum(objective.layers.values())} == RECOMMENDED


def test_a_trained_model_is_projected_and_its_kernels_stay_free() -> None:
    x, trained, distances = torch.rand(2, 1, 9, 9), net().eval(), []
    for options in ({"weights": "project"}, {"kernels": "free"}, {}, {"kernels": "smooth"}):
        model = copy.deepcopy(trained)
        start = prepared(model, "rot4", 4, x, **options).start
        distances.append(start.layers["0"].distance)
        if start.weights == "project":
            twin = copy.deepcopy(trained)
            assert start == ien.start_equivariant(twin, "rot4", 4, x, weights="project")
            torch.testing.assert_close(model.state_dict(), twin.state_dict())
    project, free, default, smooth = distances
    assert project == free < default == smooth


MISTAKES = {
    "scale": ({"group": "scale0.7"}, ValueError, "needs rotations and flips"),
    "3": ({"feature_groups": 3}, ValueError, "rot4 cannot permute"),
    "16": ({"feature_groups": 16}, ValueError, "cannot permute the members of feature groups of size 16"),
    "weight": ({"layers": {"2": -1.0}}, ValueError, "must be a number of at least 0"),
    "size": ({"input": torch.rand(2, 1, 8, 8)}, ValueError, "exact input sizes"),
    "old": ({"weights": "old"}, ValueError, 'weights must be "random" or "project"'),
    "no layer": ({"layers": ["2", "nope"]}, KeyError, "the model has no layer 'nope'"),
    "overwritten": ({"layers": ["2", "5"]}, RuntimeError, "'5' was overwritten .*; capture '6' instead"),
    "vectors": ({"layers": ["2", "9"]}, TypeError, r"'9' returned a tensor of shape \(4, 3\)"),
    "small maps": (
        {"model": nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 6)), "group": "rot8"}
        | {"feature_groups": 8},
        ValueError,
        r"2×2 map of layer '2': .* leave the layer out",
    ),
    "concatenated": (
        {"model": concatenating(), "layers": ["0", "1"]},
        ValueError,
        "layer '0' concatenates maps, in feature groups 1-4.* name the layers",
    ),
    "other": (
        {"optimizer": torch.optim.SGD(net().parameters())},
        ValueError,
        "has no parameter of the model: create it with",
    ),
    "number": ({"optimizer": 0.1}, TypeError, "optimizer must be a torch.optim.Optimizer; got a float"),
    "one image": ({"input": torch.rand(1, 9, 9)}, ValueError, r"must be a batch of images \(B, C, H, W\)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_leaves_the_model_as_it_was(name) -> None:
    change, error, message = MISTAKES[name]
    model = net()
    model[6] = nn.ReLU(inplace=True)
    arguments = {"model": model, "group": "rot4", "feature_groups": 4, "input": torch.rand(2, 1, 9, 9)}
    arguments |= {"layers": ["0", "2"], **change}
    arguments.setdefault("optimizer", torch.optim.Adam(arguments["model"].parameters()))
    before = state(arguments["model"])
    with pytest.raises(error, match=message):
        ien.recommended(**arguments)
    assert_same_weights(arguments["model"], before)


def test_only_a_module_can_be_prepared() -> None:
    with pytest.raises(TypeError, match=r"recommended needs a torch\.nn\.Module; got a str"):
        ien.recommended("cnn6", "rot4", 4, torch.rand(2, 1, 9, 9), torch.optim.Adam(net().parameters()))
