"""Rot-TIM and R2-TIM: the rows are the paper's, and each runs end to end on a small folder of images."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import ien
from ien.experiments import config, deviations, find, paper
from ien.experiments.printed import TABLES
from ien.training import flat
from tests.helpers.configs import distinct
from tests.helpers.shell import invoke
from tests.helpers.tiny import make_tiny_imagenet

pytestmark = pytest.mark.usefixtures("elsewhere")

# of the paper's tables: for each network and group CNN, CNN-aug, E2CNN and IEN with beta 0.01, 0.1 and 1
ACCURACY = {
    ("rot-tim", "resnet18", "r4"): (42.5, 56.7, 53.5, 56.9, 55.8, 54.7),
    ("rot-tim", "resnet18", "r8"): (42.6, 58.5, 56.5, 58.6, 59.7, 58.6),
    ("r2-tim", "resnet18", "r4r"): (43.2, 56.3, 55.9, 56.1, 55.7, 54.0),
    ("rot-tim", "vgg", "r4"): (32.1, 45.3, 46.7, 45.8, 47.4, 46.1),
    ("rot-tim", "vgg", "r8"): (32.1, 51.5, 50.2, 51.6, 51.1, 48.9),
    ("r2-tim", "vgg", "r4r"): (32.5, 50.0, 51.1, 49.9, 49.7, 48.3),
}
ROWS = ("cnn", "cnn-aug", "e2cnn", "ien-beta0.01", "ien-beta0.1", "ien-beta1")
HET = {
    "resnet18-r4-2-1": (55.4, "4-2-1", "rot4"),
    "resnet18-r8-4-2-1": (57.7, "8-4-2-1", "rot8"),
    "vgg-r4-2-1": (46.5, "4-2-1", "rot4"),
    "vgg-r8-4-2": (51.3, "8-4-2", "rot8"),
    "vgg-r8-4-2-1": (50.8, "8-4-2-1", "rot8"),
}
EQUIVARIANT = {f"rot-tim/resnet18-r8-equivariant{how}" for how in ("", "-2x", "-loss")}
ALONE = {f"rot-tim/resnet18-r8-{how}-alone-2x" for how in ("cnn-aug", "e2cnn")}
# how the loss treats rotations by 45°: interpolation, and whether corners count
RESAMPLED = {
    "rot-tim/resnet18-r8-ien-beta0.1-nearest-corners": ("nearest", True),
    "rot-tim/resnet18-r8-ien-beta0.1-nearest": ("nearest", False),
    "rot-tim/resnet18-r8-ien-beta0.1-corners": ("bilinear", True),
}
BEYOND = {*EQUIVARIANT, *ALONE, *RESAMPLED}  # beyond the paper
GROUPS = {"r4": ("rot4", "4"), "r8": ("rot8", "8"), "r4r": ("rot4xflip", "8")}


def test_there_is_every_row_of_the_papers_tables_with_its_figures() -> None:
    expected = {}
    for (dataset, net, group), figures in ACCURACY.items():
        for row, accuracy in zip(ROWS, figures, strict=True):
            expected[f"{dataset}/{net}-{group}-{row}"] = accuracy
    expected |= {f"rot-tim/{name}-het-ien": figures[0] for name, figures in HET.items()}
    printed = {**paper("rot-tim"), **paper("r2-tim")}
    assert {name: row.accuracy for name, row in printed.items()} == expected
    same_width = {f"rot-tim/{name}-cnn-aug" for name in HET}  # the paper leaves these out
    base = {f"{dataset}/{net}-{group}-cnn-base" for dataset, net, group in ACCURACY}
    assert set(find("rot-tim/*", "r2-tim/*")) == set(expected) | same_width | base | BEYOND


@pytest.mark.parametrize(("dataset", "net", "group"), ACCURACY)
def test_the_cnn_without_views_is_as_large_as_the_steerable_one_at_inference(dataset, net, group) -> None:
    ours = config(f"{dataset}/{net}-{group}-cnn", "paper").network
    with torch.device("meta"):
        plain = ien.models.create(net, feature_groups=ours.feature_groups, width=ours.width)
    plain_widths = [conv.out_channels for conv in plain.modules() if isinstance(conv, torch.nn.Conv2d)]
    steerable = ien.baselines.create(f"e2cnn-{net}", group=GROUPS[group][0], width=1 / 24).export()
    small = ien.models.create(net, feature_groups=ours.feature_groups, width=1 / 24)
    widths = [conv.out_channels for conv in steerable.modules() if isinstance(conv, torch.nn.Conv2d)]
    assert widths == [conv.out_channels for conv in small.modules() if isinstance(conv, torch.nn.Conv2d)]
    # of the paper's tables
    first = {"resnet18": {"r4": 136, "r8": 192, "r4r": 192}, "vgg": {"r4": 144, "r8": 200, "r4r": 200}}
    assert plain_widths[0] == first[net][group]


@pytest.mark.parametrize("name", [name for name in HET if name not in ("resnet18-r8-4-2-1", "vgg-r4-2-1")])
def test_widths_that_are_not_the_authors_are_told(name) -> None:
    for method in ("het-ien", "cnn-aug"):
        network = config(f"rot-tim/{name}-{method}", "paper").network
        with torch.device("meta"):
            net = ien.models.create(network.model, feature_groups=network.feature_groups)
        widths = {conv.out_channels for conv in net.modules() if isinstance(conv, torch.nn.Conv2d)}
        (told,) = [text for text in deviations(f"rot-tim/{name}-{method}") if text.startswith("channels")]
        ours = told.removeprefix("channels at paper ").partition(" (")[0].split("-")
        assert {int(width) for width in ours} == widths


@pytest.mark.parametrize("name", find("rot-tim/*", "r2-tim/*"))
def test_what_is_said_of_views_and_of_45_degrees_is_said_of_rows_that_have_them(name) -> None:
    settings = flat(config(name, "small"))
    told = deviations(name)
    assert any("a view is never" in text for text in told) == settings["augment"]
    turned = settings["augment"] and "45°" in ien.group(settings["group"]).labels
    assert any("rotations by 45°" in text for text in told) == turned


@pytest.mark.parametrize("net", ["resnet18", "vgg"])
def test_the_base_network_is_a_ninth_to_a_fifth_of_the_others(net) -> None:
    with torch.device("meta"):
        base, *others = (ien.models.create(net, feature_groups=size) for size in (1, 4, 8))
    count = sum(parameter.numel() for parameter in base.parameters())
    for other in others:
        assert 4.4 < sum(parameter.numel() for parameter in other.parameters()) / count < 9.3
    assert "a ninth to a fifth" in str(deviations(f"rot-tim/{net}-r4-cnn-base"))


@pytest.mark.parametrize(("net", "matches"), [("resnet18", True), ("vgg", False)])
def test_what_the_tables_say_of_parameters_is_counted(net, matches) -> None:
    parts = [part for table in TABLES.values() for part in table.parts]
    (note,) = {note for part in parts for note in part.notes if net in note.lower()}
    with torch.device("meta"):
        nets = [ien.models.create(net, feature_groups=1)]
    nets += [ien.baselines.create(f"e2cnn-{net}", group=group) for group, _ in GROUPS.values()]
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in nets]
    assert all(f"{count / 1e6:.2f} M" in note for count in counts)
    assert matches == all(abs(count / counts[0] - 1) < 0.005 for count in counts)
    assert ("does not hold" in note) != matches


def test_the_powers_of_ten_fall_as_beta_rises() -> None:
    figures = {**paper("rot-tim"), **paper("r2-tim")}
    for dataset, net, group in ACCURACY:
        order = (*ROWS[:2], *ROWS[3:], ROWS[2])  # E2CNN has the smallest errors
        rows = [figures[f"{dataset}/{net}-{group}-{row}"].exponents for row in order]
        assert all(len(row) == 4 for row in rows)
        for higher, lower in pairwise(rows):
            assert all(a >= b for a, b in zip(higher, lower, strict=True)), (dataset, net, group)


@pytest.mark.parametrize("name", find("rot-tim/*", "r2-tim/*"))
def test_the_preset_paper_is_the_papers_text(name) -> None:
    settings = flat(config(name, "paper"))
    dataset, row = name.split("/")
    net, group = row.split("-")[:2]
    wanted = {
        **{"dataset": dataset, "classes": 100, "image_size": 64, "width": 1.0},
        **{"epochs": 90, "cycle_epochs": 70, "shape": "one-cycle", "max_lr": 5e-3, "min_lr": 1e-5},
        **{"weight_decay": 1e-7, "batch_size": 32, "samples": 1, "rotate": False, "average": False},
        "model": f"e2cnn-{net}" if "e2cnn" in row else net,
        "augment": not row.endswith(("-cnn", "-base", "-equivariant", "-2x")),
        "group": GROUPS[group][0],
        "feature_groups": "1" if row.endswith("-base") else GROUPS[group][1],
    }
    for mix, (_, sizes, of) in HET.items():
        if row in (f"{mix}-het-ien", f"{mix}-cnn-aug"):
            wanted |= {"feature_groups": sizes, "group": of}
    beta = row.partition("beta")[2].partition("-")[0]
    wanted["beta"] = float(beta) if beta else 0.1 if row.endswith("het-ien") else float(row.endswith("-loss"))
    beyond = {"action": "regular" if wanted["beta"] else "pooled", "tie": "smooth"}
    usual = {"action": "pooled", "tie": "never"}
    wanted |= beyond if name in EQUIVARIANT else usual
    if row.endswith("-2x"):
        wanted |= {"epochs": 180, "cycle_epochs": 140}
    assert {field: settings[field] for field in wanted} == wanted
    assert len(deviations(name)) >= 4


@pytest.mark.parametrize("preset", ["paper", "small", "smoke"])
def test_the_ablation_of_resampling_changes_nothing_else(preset) -> None:
    assert set(find("rot-tim/resnet18-r8-ien-beta0.1-*")) == set(RESAMPLED)
    base = config("rot-tim/resnet18-r8-ien-beta0.1", preset)
    for name, (interpolation, corners) in RESAMPLED.items():
        wanted = {"interpolation": interpolation, "corners": corners, "experiment": name}
        assert flat(config(name, preset)) == flat(base) | wanted
        told = [text for text in deviations(name) if text.startswith("rotations by 45°")]
        assert len(told) == 1 and f"are {interpolation}" in told[0]
        assert ("corners are compared too" in told[0]) == corners


@pytest.mark.parametrize("net", ["resnet18", "vgg"])
def test_quarter_turns_are_exact_at_the_size_of_every_preset(net) -> None:
    model = ien.models.create(net, feature_groups=8, width=1 / 24)
    sizes = {config(f"rot-tim/{net}-r8-cnn-aug", p).data.image_size for p in ("paper", "small", "smoke")}
    for size in sizes:
        assert ien.doctor(model, (3, size, size)).exact, size
        maps = ien.measure(model, torch.rand(2, 3, size, size), "rot8", model.taps, 8, floors=False).layers
        assert all(layer.between is not None for layer in maps.values())  # 45° leaves pixels to compare


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("PIL", reason="Tiny ImageNet is read by pillow: pip install 'ien[plots]'")
    folder = tmp_path_factory.mktemp("tim")
    make_tiny_imagenet(folder, classes=2, train=10, val=4)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", distinct("rot-tim/*", "r2-tim/*"))
def test_every_row_runs(name, folder) -> None:
    invoke("run", name, "--preset", "smoke", "--data", folder, "--threads", "1", "--out", folder / "runs")
    run = folder / "runs" / name / "smoke-seed1"
    record = json.loads((run / "result.json").read_text())
    assert record["data"]["name"] == name.split("/")[0] and record["data"]["source"] == "generated"
    net = ien.load(run)
    assert set(record["layers"]) == set(net.taps) and not net.training
