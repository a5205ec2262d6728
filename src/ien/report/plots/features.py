"""Feature maps: from runs and an image in all orientations to maps, also aligned back, and to a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._text import number
from ...groups.group import Group
from ...loss.capture import capture
from ...loss.error import image_errors
from ...loss.feature_groups import pool_layer
from ...loss.layers import per_layer
from ..opened import Subject
from .style import GREY, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LayerMaps", "Views", "feature_maps", "plot_features", "views"]

Maps = NDArray[np.float64]
MOST = 12
"""Orientations that are still recognisable beside each other on a page."""
OUTSIDE = "#e3e3e3"


class Views(NamedTuple):
    """One image under every element, the identity first."""

    images: Maps
    """(n, H, W) for one channel, (n, H, W, 3) for three; of other numbers of channels, their mean."""
    aligned: Maps
    """The same moved back; NaN where pixels left the frame."""


class LayerMaps(NamedTuple):
    """One pooled map of a layer for an image under every element, the identity first."""

    maps: Maps
    """As computed, (n, H, W)."""
    aligned: Maps
    """Moved back by the inverse elements; NaN where pixels left the map."""
    channel: int
    """Which of the pooled maps: the one that varies most on the untransformed image."""
    relative: float
    """The relative error of the layer on this image, over all its channels: the mean over the elements."""


def feature_maps(
    subject: Subject, layers: Sequence[str] | None = None, image: int = 0, group: Group | None = None
) -> dict[str, LayerMaps]:
    """What each layer makes of one test image of a run under every element, and the same aligned back.

    ``layers`` and ``group`` are by default those of the run.
    """
    group, layers = group or subject.group, list(subject.layers if layers is None else layers)
    if not layers:
        raise ValueError(f"there is no layer to plot: name some of {', '.join(subject.layers)}")
    x, g = _transformed(subject, image, group)
    partition = per_layer(subject.feature_groups, layers)
    with torch.no_grad(), capture(subject.model, layers, lambda n, h: pool_layer(n, h, partition[n])) as maps:
        subject.model(x)
    return {name: _layer_maps(name, h, group, g) for name, h in maps.items()}


def views(subject: Subject, image: int = 0, group: Group | None = None) -> Views:
    """The image itself under every element, and aligned back."""
    group = group or subject.group
    x, g = _transformed(subject, image, group)
    both = (_as_picture(maps) for maps in (x.double(), _aligned(x, group, g)))
    return Views(*both)


@styled()
def plot_features(
    subjects: Sequence[Subject],
    layers: Sequence[str] | None = None,
    image: int = 0,
    group: Group | None = None,
) -> Figure:
    """The paper's figure: an image in all orientations, and what the layers of each run make of it.

    Left as computed, right aligned back, where an equivariant layer shows equal pictures: a block a layer, a
    row a run. A row shows the pooled map that varies most on the image as it is, on one scale of colours, and
    the relative error of the layer on this image. Grey is what left the frame.
    """
    group = _check(subjects, image, group)
    maps = [feature_maps(subject, layers, image, group) for subject in subjects]
    names, common = _short_names([subject.name for subject in subjects])
    return _draw(views(subjects[0], image, group), maps, names, common, group.labels)


def _check(subjects: Sequence[Subject], image: int, group: Group | None) -> Group:
    """The group to plot, if the runs can be compared."""
    if not subjects:
        raise ValueError("there is nothing to plot: give at least one run")
    first = subjects[0]
    groups = {str(subject.group): subject.group for subject in subjects}
    if group is None and len(groups) > 1:
        raise ValueError(f"the runs have the groups {', '.join(groups)}: say which one to plot")
    for other in subjects[1:]:
        if not torch.equal(_image(first, image), _image(other, image)):
            raise ValueError(
                f"image {image} of {first.name} ({first.config.data.dataset}) is not that of {other.name} "
                f"({other.config.data.dataset}): plot runs of one data set"
            )
    return first.group if group is None else group


def _image(subject: Subject, image: int) -> Tensor:
    count = len(subject.images)
    if not 0 <= image < count:
        raise ValueError(f"image {image} is not there: {subject.name} has images 0 to {count - 1}")
    return subject.images[image]


def _transformed(subject: Subject, image: int, group: Group) -> tuple[Tensor, Tensor]:
    """The image under every element (n, C, H, W), and the elements (n,)."""
    if not 2 <= len(group) <= MOST:
        raise ValueError(
            f"feature maps are shown for 2 to {MOST} elements; {group} has {len(group)}: take rot4 or rot8"
        )
    g = torch.arange(len(group))
    x = _image(subject, image).expand(len(group), -1, -1, -1)
    return group.act(x, g), g


def _layer_maps(name: str, h: Tensor, group: Group, g: Tensor) -> LayerMaps:
    if not torch.isfinite(h).all():
        raise ValueError(
            f"layer {name!r} returned NaN or infinite values on this image: it has no map to show"
        )
    h = h.double()
    channel = int(h[0].var((1, 2), correction=0).argmax())
    errors = image_errors(h[:1].expand_as(h[1:]), h[1:], group, g[1:])
    relative = errors[~errors.isnan()].mean() / h[0].var(correction=0).clamp_min(1e-12)
    shown = h[:, channel : channel + 1]
    return LayerMaps(shown[:, 0].numpy(), _aligned(shown, group, g)[:, 0].numpy(), channel, float(relative))


def _aligned(maps: Tensor, group: Group, g: Tensor) -> Tensor:
    """``maps`` moved back, NaN where a pixel is made of what was filled in, on the way there or back."""
    valid = group.valid(maps, g)
    known = torch.ones_like(maps[:, :1], dtype=torch.bool) if valid is None else valid
    try:
        known = group.act_on_features(known.double(), g, inverse=True) > 1 - 1e-6
    except ValueError as error:
        raise ValueError(f"maps cannot be aligned back ({error}): take rotations, flips or scales") from None
    return group.act_on_features(maps.double(), g, inverse=True).masked_fill(~known, torch.nan)


def _as_picture(x: Tensor) -> Maps:
    return (x.permute(0, 2, 3, 1) if x.shape[1] == 3 else x.mean(1)).numpy()


def _short_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Names without the words that all end with, and these words; of a single name nothing, and all of it."""
    words = [name.split() for name in names]
    if len(names) == 1:
        first, *rest = words[0]
        return [""], "\n".join([first, " ".join(rest)]).strip()
    common: list[str] = []
    while all(len(w) > 1 for w in words) and len({w[-1] for w in words}) == 1:
        common.insert(0, words[0][-1])
        words = [w[:-1] for w in words]
    return [plain(" ".join(w), 28) for w in words], " ".join(common)


def _draw(
    inputs: Views,
    maps: Sequence[Mapping[str, LayerMaps]],
    names: Sequence[str],
    common: str,
    labels: Sequence[str],
) -> Figure:
    """One axes over the whole figure, in inches from its top left corner: pictures are placed by hand."""
    from matplotlib.figure import Figure

    n, layers = len(labels), list(maps[0])
    left = 0.25 + 0.082 * max(map(len, [*names, *common.splitlines(), *map(plain, layers), "input"]))
    tile = min(0.62 if len(layers) * len(maps) > 12 else 0.8, (9 - left - 1.05) / (2 * n))
    halves = left, left + n * tile + 0.25
    right, block = halves[1] + n * tile, 0.36 + len(maps) * tile
    figure = Figure(figsize=(right + 0.8, 0.62 + tile + len(layers) * block + 0.1))
    axes = figure.add_axes((0, 0, 1, 1))
    _heads(axes, halves, tile, labels)
    small: dict[str, Any] = {"fontsize": 8.5, "color": GREY, "va": "center"}
    axes.text(0.1, 0.22, common, **small)
    axes.text(right + 0.1, 0.22, "relative\nerror", **small)
    _row(axes, inputs.images, inputs.aligned, halves, 0.62, tile, "input", "gray")
    for k, layer in enumerate(layers):
        top = 0.62 + tile + k * block
        axes.plot([0.1, right + 0.7], [top + 0.07] * 2, color="#e3e3e3", linewidth=0.8)
        axes.text(0.1, top + 0.22, plain(layer), weight="bold", va="center")
        for i, (name, of_run) in enumerate(zip(names, maps, strict=True)):
            shown, y = of_run[layer], top + 0.36 + i * tile
            _row(axes, shown.maps, shown.aligned, halves, y, tile, name, "viridis")
            axes.text(right + 0.1, y + tile / 2, number(shown.relative), va="center", fontsize=9)
    axes.set(xlim=(0, figure.get_figwidth()), ylim=(figure.get_figheight(), 0), aspect="auto")
    axes.set_axis_off()
    return figure


def _heads(axes: Axes, halves: tuple[float, float], tile: float, labels: Sequence[str]) -> None:
    rotations = all(label.endswith("°") for label in labels[1:])
    for half, title in zip(halves, ("as computed", "aligned back"), strict=True):
        axes.text(half, 0.2, title, weight="bold", fontsize=10.5, va="center")
        for i, label in enumerate(labels):
            shown = "0°" if i == 0 and rotations else plain(label, 9)
            axes.text(half + (i + 0.5) * tile, 0.54, shown, ha="center", fontsize=8.5, color=GREY)


def _row(
    axes: Axes,
    maps: Maps,
    aligned: Maps,
    halves: tuple[float, float],
    top: float,
    tile: float,
    name: str,
    colours: str,
) -> None:
    """Pictures on one scale, with a name at their left."""
    from matplotlib import colormaps

    axes.text(0.1, top + tile / 2, name, va="center", fontsize=9)
    cmap = colormaps[colours].with_extremes(bad=OUTSIDE)
    for half, pictures in zip(halves, (maps, aligned), strict=True):
        for i, picture in enumerate(pictures):
            if picture.ndim == 3:  # colours have no scale, and no value that means outside
                picture = np.where(np.isnan(picture), 0.89, picture.clip(0, 1))
            x, gap = half + i * tile, 0.02
            frame = x + gap, x + tile - gap, top + tile - gap, top + gap
            scale: dict[str, Any] = {"cmap": cmap, "vmin": maps.min(), "vmax": maps.max(), "extent": frame}
            axes.imshow(picture, interpolation="none", aspect="auto", **scale)
