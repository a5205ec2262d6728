"""Scale-MNIST, STL-10, rotated and scaled digits: the rows are the paper's, and each runs end to end."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import ien
from ien._files import generator
from ien.experiments import config, deviations, find, paper
from ien.training import change, flat
from ien.training.classify import CLASSIFY, augmented
from ien.training.evaluate import evaluate
from ien.training.network import objective_of
from ien.training.schedule import learning_rate
from tests.helpers.configs import network, with_values
from tests.helpers.shell import invoke
from tests.helpers.tiny import make_stl10

pytestmark = pytest.mark.usefixtures("elsewhere")

ALL = find("scale-mnist/*", "stl10/*", "rot-scale-mnist/*")
ERRORS = {
    **{"scale-mnist/28-ss-cnn": 2.10, "scale-mnist/28-dss": 1.95},
    **{"scale-mnist/28-sesn-vector": 1.76, "scale-mnist/28-ien": 1.78},
    **{"scale-mnist/56-ss-cnn": 1.76, "scale-mnist/56-dss": 1.57},
    **{"scale-mnist/56-sesn-vector": 1.42, "scale-mnist/56-ien": 1.33},
    **{"stl10/ss-cnn": 25.47, "stl10/dss": 11.28, "stl10/sesn-a": 10.83, "stl10/ien": 10.11},
}
DIGITS = ("cnn", "cnn-aug", "ss-cnn", "dss", "sesn-scalar", "sesn-vector", "ien")


def test_there_is_every_row_of_the_papers_table_and_the_fair_comparisons_beside_them() -> None:
    rows = [f"scale-mnist/{size}-{row}" for size in (28, 56) for row in DIGITS]
    rows += [f"stl10/{row}" for row in ("wrn", "cnn-aug", "ss-cnn", "dss", "sesn-a", "ien")]
    rows += [f"rot-scale-mnist/{row}" for row in ("cnn-aug", "ien-rotation", "ien-scale", "ien-both")]
    assert sorted(ALL) == sorted(rows)
    printed = {**paper("scale-mnist"), **paper("stl10"), **paper("rot-scale-mnist")}
    assert {name: pytest.approx(100 - row.accuracy) for name, row in printed.items()} == ERRORS


@pytest.mark.parametrize("name", ALL)
def test_the_preset_paper_is_the_published_protocol(name: str) -> None:
    dataset, row = name.split("/")
    settings = flat(config(name, "paper"))
    digits = {
        **{
            "epochs": 60,
            "batch_size": 128,
            "algorithm": "adam",
            "max_lr": 0.01,
            "rescale": 2.0,
            "width": 1.0,
        },
        **{"shape": "steps", "steps_after": "20,40", "decay": 0.1, "train_images": 10_000},
    }
    objects = {
        **{"epochs": 1000, "batch_size": 128, "algorithm": "sgd", "max_lr": 0.1, "weight_decay": 5e-4},
        **{"shape": "steps", "steps_after": "300,400,600,800", "decay": 0.2, "width": 1.0},
        **{"image_size": 96, "shift": 12, "mirror": True, "cutout": 32, "rescale": 1.0},
    }
    wanted = {"scale-mnist": digits, "stl10": objects, "rot-scale-mnist": {**digits, "rescale": 1.0}}[dataset]
    assert {field: settings[field] for field in wanted} == wanted
    twin = "ien" in row or row.endswith("cnn-aug")
    assert settings["data_seed"] == (0 if dataset == "stl10" else None)
    assert settings["augment"] == twin and (settings["beta"] > 0) == ("ien" in row)
    told = " ".join(deviations(name))
    assert ("the factors" in told and "beta" in told) == ("ien" in row)
    for model, text in (
        ("sesn-wrn", "before the maximum"),
        ("dss", "after the maximum"),
        ("ss-cnn", "factor 1 / s"),
    ):
        assert (text in told) == (settings["model"] == model)


def test_the_twin_has_a_feature_group_of_all_scales_of_sesn() -> None:
    for size in (28, 56):
        ours, theirs = (
            network(config(f"scale-mnist/{size}-{row}", "paper")) for row in ("ien", "sesn-vector")
        )
        assert ours.feature_groups == theirs.feature_groups
        assert ours.norm3.num_features == theirs.norm3.num_features == 95


def test_the_augmented_network_is_the_twin_without_the_loss() -> None:
    for prefix in ("scale-mnist/28-", "scale-mnist/56-", "stl10/"):
        ours, other = (flat(config(f"{prefix}{row}", "small")) for row in ("ien", "cnn-aug"))
        assert {field for field in ours if ours[field] != other[field]} == {"experiment", "beta"}


def test_all_rows_about_two_groups_see_three_views() -> None:
    for row in find("rot-scale-mnist/*"):
        settings = config(row, "smoke")
        objective = objective_of(settings, network(settings))
        assert objective is not None and objective.views == 3


def test_the_rows_about_two_groups_differ_in_their_loss_only() -> None:
    rows = [flat(config(row, "small")) for row in find("rot-scale-mnist/*")]
    differing = {field for field in rows[0] if any(row[field] != rows[0][field] for row in rows)}
    assert differing == {"experiment", "group", "samples", "beta", "normalize"}


def test_each_seed_of_a_row_on_scaled_digits_is_a_realisation_of_its_own() -> None:
    first = with_values(config("scale-mnist/28-cnn", "smoke"), seed=1)
    again, other = with_values(first, max_lr=0.1), with_values(first, seed=2)
    same, also, different = (CLASSIFY.load(each, "embedded").train_x for each in (first, again, other))
    assert torch.equal(same, also) and not torch.equal(same, different)
    fixed = [CLASSIFY.load(with_values(each, data_seed=3), "embedded").train_x for each in (first, other)]
    assert torch.equal(*fixed)


def test_the_learning_rate_falls_in_steps() -> None:
    steps = with_values(config("scale-mnist/28-ien", "paper"), max_lr=0.01)
    rates = [learning_rate(steps, epoch * 7 + 3, 7) for epoch in range(60)]
    assert rates == pytest.approx([0.01] * 20 + [0.001] * 20 + [0.0001] * 20)


def test_a_shorter_run_keeps_the_shape_of_its_steps() -> None:
    shorter = change(config("scale-mnist/28-ien", "paper"), ["epochs=6"])
    assert shorter.schedule.steps_after == "2,4" and shorter.schedule.step_epochs == (2, 4)
    assert [change(shorter, [f"epochs={n}"]).schedule.steps_after for n in (2, 1)] == ["1", "1"]
    with pytest.raises(ValueError, match=r"steps_after \(20,40\) must lie within the 6 epochs"):
        change(shorter, ["steps_after=20,40"])
    with pytest.raises(ValueError, match="steps_after must list epochs, such as 20,40; got 'soon'"):
        change(shorter, ["steps_after=soon"])


def test_what_happens_to_an_image_does_not_depend_on_the_processes_that_share_its_batch() -> None:
    settings = with_values(config("stl10/ien", "small"), rotate=True, rescale=2.0, transform=True)
    x, colour = torch.rand(10, 3, 24, 24), torch.rand(3)
    whole = augmented(settings, x, 10, slice(0, 10), (3, 4), colour)
    parts = [augmented(settings, x[s], 10, s, (3, 4), colour) for s in (slice(0, 6), slice(6, 10))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(augmented(settings, x, 10, slice(0, 10), (3, 5), colour), whole)


def test_training_images_are_changed_as_the_configuration_says() -> None:
    plain = with_values(config("stl10/wrn", "small"), shift=0, mirror=False, cutout=0)
    x, colour = torch.rand(400, 1, 12, 12) + 1, torch.zeros(1)  # zeros only where something was cut off

    def changed(**settings: object) -> torch.Tensor:
        return augmented(with_values(plain, **settings), x, 400, slice(0, 400), (0, 0), colour)

    assert torch.equal(changed(), x)
    mirrored = (changed(mirror=True) == x.flip(3)).all((1, 2, 3))
    assert 150 < int(mirrored.sum()) < 250
    turned = changed(transform=True, group="rot4")
    places = torch.stack([(turned == x.rot90(k, (2, 3))).all((1, 2, 3)) for k in range(4)])
    assert places.sum(1).tolist() == [100] * 4 and places.sum(0).tolist() == [1] * 400
    shifted = changed(shift=2)
    empty = (shifted == 0).all(3).sum(2).flatten()  # rows
    assert set(empty.tolist()) == {0, 1, 2}
    holes = (changed(cutout=4) == 0).sum((1, 2, 3))
    assert int(holes.max()) == 16 and int(holes.min()) == 4  # whole, and with its centre in a corner
    scaled = augmented(
        with_values(plain, rescale=2.0), torch.ones(400, 1, 64, 64), 400, slice(0, 400), (0, 0), colour
    )
    factors = 0.5 + 1.5 * torch.rand(400, generator=generator(plain.seed, "factors", 0, 0))
    sides = (scaled[:, 0, 32] > 0.5).sum(1) / 64
    assert (sides - factors.clamp(max=1)).abs().max() < 1.5 / 64


def test_several_groups_train_together_and_are_measured_together() -> None:
    both = with_values(config("rot-scale-mnist/ien-both", "smoke"), threads=1)
    net = network(both).eval()
    objective = objective_of(both, net)
    groups = both.objective.group.split("+")
    assert objective is not None and [str(group) for group in objective.groups] == groups
    assert objective.views == 3
    weighted = objective_of(with_values(both, group="rot4+0.5*scale0.8,1.25"), net)
    assert weighted is not None and list(weighted.groups.values()) == [1.0, 0.5]
    x, y = torch.randint(256, (24, 1, 28, 28), dtype=torch.uint8), torch.randint(10, (24,))
    together = evaluate(both, net, x, y)
    apart = [evaluate(with_values(both, group=group, measured=""), net, x, y) for group in groups]
    # trained for one, measured for both
    alone = with_values(both, group="rot4", measured=both.objective.group)
    assert evaluate(alone, net, x, y) == together
    for name, layer in together["layers"].items():
        parts = [each["layers"][name] for each in apart]
        for measure in ("raw", "relative"):
            assert layer[measure] == pytest.approx(sum(part[measure] for part in parts) / 2)
        assert layer["per_element"] == parts[0]["per_element"] | parts[1]["per_element"]
        assert set(layer["per_element"]) == {"90°", "180°", "270°", "×0.8", "×1.25"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"group": "rot4+scale0.9", "average": True}, "average=true needs a single group, such as rot4"),
        ({"measured": "rot8", "average": True}, "measures under it; got group rot4, measured rot8"),
        ({"group": "rot4+rot4"}, "groups must differ and have positive weights"),
        ({"group": "rot4+0*flip"}, "groups must differ and have positive weights"),
        ({"group": "rot4+much*flip"}, r"cannot read 'much\*flip' in 'rot4\+much\*flip'"),
        ({"model": "e2cnn-cnn6", "group": "rot4+flip"}, "under rot4.flip needs feature groups of 4"),
        ({"group": "rot4+rot1"}, "one element, the identity"),
        ({"group": "rot4+scale0.9", "samples": 2}, r"samples must be 1 to 1 for rot4\+scale0.9"),
        ({"measured": "rot4+turn"}, "cannot read group 'turn'"),
        ({"schedule": "steps"}, "steps_after must list rising epochs, such as 20,40; got ''"),
        ({"schedule": "steps", "steps_after": "5,5"}, "must list rising epochs"),
        ({"schedule": "steps", "steps_after": "5,3"}, "must list rising epochs"),
        ({"model": "cnn3"}, "image_size must be 28 or 56 for cnn3; got 64"),
    ],
)
def test_groups_that_cannot_be_are_told(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        with_values(config("rot-mnist/cnn-aug", "small"), **changes)


@pytest.mark.parametrize("factors", ["0.4", "0.4,1.5"])
@pytest.mark.parametrize("beta", ["0", "1"])
def test_a_factor_that_leaves_nothing_to_compare_is_told_before_training(factors: str, beta: str) -> None:
    shrink = ("--set", f"group=scale{factors}", "--set", f"beta={beta}", "--preset", "smoke")
    done = invoke("run", "rot-mnist/cnn-aug", *shrink, "--data", "embedded", "--threads", "1", code=2)
    assert "'conv6'" in done.output and "2×2" in done.output
    assert not list(Path("runs").rglob("metrics.jsonl"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    make_stl10(folder, train=64, test=32)
    return folder


@pytest.mark.parametrize("name", ALL)
def test_every_row_runs(name: str, folder: Path) -> None:
    digits = "mnist" in name
    data, suffix = ("embedded", "-embedded") if digits else (folder, "")
    invoke("run", name, "--preset", "smoke", "--data", data, "--threads", "1", "--out", folder / "runs")
    run = folder / "runs" / name / f"smoke-seed1{suffix}"
    record = json.loads((run / "result.json").read_text())
    assert record["data"]["name"] == name.split("/")[0]
    assert record["data"]["source"] == ("embedded-5k" if digits else "subset")
    net = ien.load(run)
    assert set(record["layers"]) == set(net.taps) and not net.training
    # two epochs on a few images teach nothing: the errors are numbers, not small ones
    assert all(0 <= layer["raw"] < math.inf for layer in record["layers"].values())


def test_the_table_shows_error_rates_beside_the_papers(folder: Path) -> None:
    for name in ("scale-mnist/28-ien", "scale-mnist/28-cnn", "rot-scale-mnist/ien-both"):
        test_every_row_runs(name, folder)  # at once where it is finished
    text = " ".join(invoke("table", "scale", "--results", folder / "runs").output.split())
    digits, both = text.split("Rotated and scaled digits", 1)
    assert "Scale-MNIST 28×28: Error rate and cost" in digits and "1.78" in digits
    record = json.loads((folder / "runs/scale-mnist/28-ien/smoke-seed1-embedded/result.json").read_text())
    assert f"{100 - 100 * record['accuracy']:.2f}" in digits
    for part in ("quarter turns and flips alone", "the other elements alone, which resample"):
        assert part in both and part not in digits
