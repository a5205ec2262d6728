"""Rot-TIM and R2-TIM: every row of the paper's tables for ResNet18 and VGG, at every size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..report import PaperRow
from .rows import EQUIVARIANT, Settings, Table, notes_beyond_the_paper

__all__ = ["R2_TIM", "ROT_TIM"]

NETS = ("resnet18", "vgg")
BETAS = (0.01, 0.1, 1.0)
GROUPS = {"r4": ("rot4", "4"), "r8": ("rot8", "8"), "r4r": ("rot4xflip", "8")}
"""Name in the paper → the group, and the size of the feature groups."""
HET = {
    "resnet18": {"r4-2-1": "r4", "r8-4-2-1": "r8"},
    "vgg": {"r4-2-1": "r4", "r8-4-2": "r8", "r8-4-2-1": "r8"},
}
"""Network → mixes of feature groups, and the group of each."""

SMOKE: dict[str, Any] = {
    "width": 1 / 24,
    "epochs": 2,
    "cycle_epochs": 1,
    "batch_size": 8,
    "train_images": 16,
    "test_images": 8,
    "validation_images": 8,
}
"""The preset smoke of rows on pictures."""

SIZES: dict[str, dict[str, Any]] = {
    "paper": {"classes": 100},
    "small": {"classes": 20, "width": 1 / 8},
    "demo": {"classes": 20, "width": 1 / 8},
    "smoke": {"classes": 2, **SMOKE},
}
"""Preset → its settings."""
IMAGE_SIZES = {
    "resnet18": {"image_size": 16, "epochs": 12, "cycle_epochs": 10},
    "vgg": {"image_size": 48, "epochs": 8, "cycle_epochs": 6},
}
"""Network → its images below the preset paper.

The sizes are exact for quarter turns, and 45° leaves pixels to compare. On held-out training images
resnet18 did better with 16 pixels and 12 epochs than with 24 and 6, which take as long.
"""

# Beyond the paper. No network is exact at 45°, so tied weights alone are not enough: images are
# rotated too; or views are shown instead, and the loss compares them.
R8 = {"model": "resnet18", "group": "rot8", "feature_groups": "8", "beta": 0.0}
R8_IEN = {**R8, "beta": 0.1}
NO_VIEWS = {"augment": False, "transform": True}
WITH_LOSS = {"augment": True, "action": "regular", "beta": 1.0}
BEYOND_THE_PAPER: dict[str, Settings] = {
    "resnet18-r8-equivariant": {**R8, **EQUIVARIANT, **NO_VIEWS},
    "resnet18-r8-equivariant-2x": {**R8, **EQUIVARIANT, **NO_VIEWS},
    "resnet18-r8-equivariant-loss": {**R8, **EQUIVARIANT, **WITH_LOSS},
    "resnet18-r8-cnn-aug-alone-2x": {**R8, **NO_VIEWS},
    "resnet18-r8-e2cnn-alone-2x": {**R8, **NO_VIEWS, "model": "e2cnn-resnet18"},
    # what the loss asks for at 45°: the authors' code is the first, and ien-beta0.1 has neither
    "resnet18-r8-ien-beta0.1-nearest-corners": {**R8_IEN, "interpolation": "nearest", "corners": True},
    "resnet18-r8-ien-beta0.1-nearest": {**R8_IEN, "interpolation": "nearest"},
    "resnet18-r8-ien-beta0.1-corners": {**R8_IEN, "corners": True},
}


def _settings(row: str, preset: str) -> Settings:
    network = row.split("-")[0]
    settings: dict[str, Any] = {"batch_size": 32}
    if preset != "paper":
        settings |= IMAGE_SIZES[network]
    return settings | SIZES[preset]


def _rows(table: str, groups: tuple[str, ...]) -> dict[str, Settings]:
    rows: dict[str, Settings] = {}
    for net in NETS:
        for name in groups:
            group, size = GROUPS[name]
            same = {"model": net, "group": group, "feature_groups": size}
            # as large as all others of its group: the paper's "CNN (no aug)"
            rows[f"{net}-{name}-cnn"] = {**same, "augment": False, "beta": 0.0}
            # feature groups of 1: the base network pools over nothing, like any other CNN
            base = {**same, "feature_groups": "1", "augment": False, "beta": 0.0}
            if name != groups[0]:
                # the base network sees no views: train it once, measure it under every group
                base["weights_of"] = f"{table}/{net}-{groups[0]}-cnn-base"
            rows[f"{net}-{name}-cnn-base"] = base
            rows[f"{net}-{name}-cnn-aug"] = {**same, "beta": 0.0}
            rows[f"{net}-{name}-e2cnn"] = {**same, "model": f"e2cnn-{net}", "beta": 0.0}
            for beta in BETAS:
                rows[f"{net}-{name}-ien-beta{beta:g}"] = {**same, "beta": beta}
    return rows


def _het_rows() -> dict[str, Settings]:
    rows: dict[str, Settings] = {}
    for net, mixes in HET.items():
        for mix, name in mixes.items():
            group, _ = GROUPS[name]
            same = {"model": net, "group": group, "feature_groups": mix.removeprefix("r")}
            # the augmented CNN with the same channels is what the loss is compared with
            rows[f"{net}-{mix}-het-ien"] = {**same, "beta": 0.1}
            rows[f"{net}-{mix}-cnn-aug"] = {**same, "beta": 0.0}
    return rows


# in the paper cnn and cnn-aug have the same exponents, under every group
CNN_EXPONENTS = {"resnet18": (3, 3, 3, 0), "vgg": (1, 2, 2, 1)}


def _paper(figures: Mapping[str, tuple[float, tuple[int, ...]]]) -> dict[str, PaperRow]:
    return {row: PaperRow(accuracy, exponents) for row, (accuracy, exponents) in figures.items()}


ROT_TIM_PAPER = _paper(
    {
        "resnet18-r4-cnn": (42.5, CNN_EXPONENTS["resnet18"]),
        "resnet18-r4-cnn-aug": (56.7, CNN_EXPONENTS["resnet18"]),
        "resnet18-r4-e2cnn": (53.5, (-11, -10, -9, -8)),
        "resnet18-r4-ien-beta0.01": (56.9, (-3, -4, -3, -1)),
        "resnet18-r4-ien-beta0.1": (55.8, (-4, -5, -5, -2)),
        "resnet18-r4-ien-beta1": (54.7, (-5, -6, -5, -3)),
        "resnet18-r8-cnn": (42.6, CNN_EXPONENTS["resnet18"]),
        "resnet18-r8-cnn-aug": (58.5, CNN_EXPONENTS["resnet18"]),
        "resnet18-r8-e2cnn": (56.5, (-10, -10, -9, -9)),
        "resnet18-r8-ien-beta0.01": (58.6, (-3, -4, -3, -1)),
        "resnet18-r8-ien-beta0.1": (59.7, (-5, -5, -4, -2)),
        "resnet18-r8-ien-beta1": (58.6, (-5, -6, -5, -2)),
        "vgg-r4-cnn": (32.1, CNN_EXPONENTS["vgg"]),
        "vgg-r4-cnn-aug": (45.3, CNN_EXPONENTS["vgg"]),
        "vgg-r4-e2cnn": (46.7, (-11, -9, -9, -8)),
        "vgg-r4-ien-beta0.01": (45.8, (-2, -2, -2, -1)),
        "vgg-r4-ien-beta0.1": (47.4, (-4, -3, -3, -2)),
        "vgg-r4-ien-beta1": (46.1, (-5, -4, -4, -3)),
        "vgg-r8-cnn": (32.1, CNN_EXPONENTS["vgg"]),
        "vgg-r8-cnn-aug": (51.5, CNN_EXPONENTS["vgg"]),
        "vgg-r8-e2cnn": (50.2, (-11, -9, -9, -8)),
        "vgg-r8-ien-beta0.01": (51.6, (-2, -2, -1, -1)),
        "vgg-r8-ien-beta0.1": (51.1, (-3, -3, -2, -2)),
        "vgg-r8-ien-beta1": (48.9, (-4, -4, -3, -3)),
        "resnet18-r4-2-1-het-ien": (55.4, ()),
        "resnet18-r8-4-2-1-het-ien": (57.7, ()),
        "vgg-r4-2-1-het-ien": (46.5, ()),
        "vgg-r8-4-2-het-ien": (51.3, ()),
        "vgg-r8-4-2-1-het-ien": (50.8, ()),
    }
)
R2_TIM_PAPER = _paper(
    {
        "resnet18-r4r-cnn": (43.2, CNN_EXPONENTS["resnet18"]),
        "resnet18-r4r-cnn-aug": (56.3, CNN_EXPONENTS["resnet18"]),
        "resnet18-r4r-e2cnn": (55.9, (-11, -10, -9, -9)),
        "resnet18-r4r-ien-beta0.01": (56.1, (-3, -4, -3, -1)),
        "resnet18-r4r-ien-beta0.1": (55.7, (-4, -5, -4, -2)),
        "resnet18-r4r-ien-beta1": (54.0, (-5, -6, -5, -3)),
        "vgg-r4r-cnn": (32.5, CNN_EXPONENTS["vgg"]),
        "vgg-r4r-cnn-aug": (50.0, CNN_EXPONENTS["vgg"]),
        "vgg-r4r-e2cnn": (51.1, (-11, -9, -9, -9)),
        "vgg-r4r-ien-beta0.01": (49.9, (-2, -2, -1, -1)),
        "vgg-r4r-ien-beta0.1": (49.7, (-3, -3, -2, -1)),
        "vgg-r4r-ien-beta1": (48.3, (-5, -4, -3, -3)),
    }
)
"""Powers of ten of L_G: after the four stages of ResNet18, and of conv 1, 3, 5 and 7 of VGG."""

DEVIATIONS = (
    "the last epoch is tested, once (the authors report the best epoch on the test set)",
    "settings are fixed beforehand (the authors report the best of several for each method)",
    "accuracy is that of the test images; the authors' measure, over images and views, stands beside it",
    "which classes and angles the authors drew is unknown: ours are drawn from data_seed",
)
VIEW_DEVIATIONS = (
    "a view is never the image itself, and elements are drawn uniformly, reflections included",
)
RESAMPLING = {
    ("bilinear", False): "bilinear and compared on valid pixels (the authors': nearest, corners included)",
    ("bilinear", True): "bilinear, and corners are compared too (the authors': nearest)",
    ("nearest", False): "nearest, and compared on valid pixels only (the authors': corners included)",
    ("nearest", True): "nearest, and corners are compared too, as in the authors' code",
}
"""Interpolation, and whether corners count → how the loss treats rotations by 45°."""
VGG_DEVIATIONS = ("all kernels are 3×3, as the paper's table says (the authors' code mixes 3×3 and 2×2)",)
BASE_DEVIATIONS = (
    "not in the paper: the ordinary network (64 first channels), at paper a ninth to a fifth as large as the "
    "networks of the other rows",
)
HET_WIDTHS = {
    "resnet18-r4-2-1": "channels at paper 88-187-374-748 (the authors': 88-176-352-704, fewer than told)",
    "vgg-r8-4-2": "channels at paper 132-264-550-1100 (the authors' code begins with 99, which does not run)",
    "vgg-r8-4-2-1": "channels at paper 129-258-516-1075 (the authors': 129-258-516-1032, fewer than told)",
}
"""Row without its method → channels at the preset paper, where they are not the authors'."""
TRANSFORM_DEVIATIONS = (
    "each image is replaced by itself under a random element, drawn again in every epoch: no network is "
    "exact at 45°, so there is something to learn from it; as many images seen as with views in half of the "
    "epochs",
)
HET_DEVIATIONS = ("the paper does not say which beta it used for heterogeneous feature groups: 0.1 here",)


def _deviations(row: str, settings: Settings) -> tuple[str, ...]:
    found: tuple[str, ...] = DEVIATIONS
    if settings.get("augment", True):
        found += VIEW_DEVIATIONS
        if settings["group"] == "rot8":
            resampling = RESAMPLING[settings.get("interpolation", "bilinear"), settings.get("corners", False)]
            found += (f"rotations by 45° are {resampling}",)
    if row.startswith("vgg"):
        found += VGG_DEVIATIONS
    if row.endswith("-base"):
        found += BASE_DEVIATIONS
    if row.endswith("het-ien"):
        found += HET_DEVIATIONS
    mix = row.removesuffix("-het-ien").removesuffix("-cnn-aug")
    if mix in HET_WIDTHS:
        found += (HET_WIDTHS[mix],)
    found += notes_beyond_the_paper(row, settings)
    if settings.get("transform"):
        found += TRANSFORM_DEVIATIONS
    return found


def _table(name: str, rows: dict[str, Settings], paper: dict[str, PaperRow]) -> Table:
    deviations = {row: _deviations(row, settings) for row, settings in rows.items()}
    return Table(name, rows, _settings, paper, deviations)


ROT_TIM = _table(
    "rot-tim", {**_rows("rot-tim", ("r4", "r8")), **_het_rows(), **BEYOND_THE_PAPER}, ROT_TIM_PAPER
)
R2_TIM = _table("r2-tim", _rows("r2-tim", ("r4r",)), R2_TIM_PAPER)
