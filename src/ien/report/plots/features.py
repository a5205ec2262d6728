"""Feature maps of an image in all orientations, as computed and moved back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._text import readable
from ...groups.group import Group
from ...loss.capture import capture
from ...loss.error import image_errors
from ...loss.feature_groups import pool_layer
from ...loss.layers import per_layer
from ..opened import OpenedRun
from .style import GREY, GRID, check_any, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ImageViews", "LayerMaps", "feature_maps", "image_views", "plot_features"]

Maps = NDArray[np.float64]
MAX_ELEMENTS = 12
"""Orientations that are still recognisable beside each other on a page."""
OUTSIDE_COLOUR = GRID
"""The colour of what left the frame."""
MIN_VARIANCE = 1e-12
"""Instead of 0, the variance of a constant layer, by which nothing can be divided."""
# inches
PAGE_WIDTH, MARGIN, HALF_GAP, NUMBERS_WIDTH = 9.0, 0.1, 0.25, 0.8
HEADS_HEIGHT, LAYER_NAME_HEIGHT = 0.62, 0.36
TILE, SMALL_TILE, MAX_LARGE_ROWS = 0.8, 0.62, 12
MAX_NAME = 28
"""Letters of the name of a run."""


class ImageViews(NamedTuple):
    """One image under every element, the identity first."""

    images: Maps
    """(n, H, W) for one channel, (n, H, W, 3) for three; else the mean of all channels."""
    aligned: Maps
    """The same moved back; NaN where pixels left the frame."""


class LayerMaps(NamedTuple):
    """One pooled map of a layer for an image under every element, the identity first."""

    maps: Maps
    """As computed, (n, H, W)."""
    aligned: Maps
    """Moved back by the inverse elements; NaN where pixels left the map."""
    channel: int
    """Which of the pooled maps: the one that varies most on the original image."""
    relative: float
    """The relative error of all channels of the layer on this image, the mean over the elements."""


def feature_maps(
    run: OpenedRun, layers: Sequence[str] | None = None, image: int = 0, group: Group | None = None
) -> dict[str, LayerMaps]:
    """Return what each layer makes of one test image under every element, also moved back.

    Args:
        run: A trained run.
        layers: Which layers; by default the run's.
        image: Which of its images.
        group: Which elements; by default the run's group.
    """
    group = group or run.group
    if layers is None:
        layers = run.layers
    if not layers:
        raise ValueError(f"there is no layer to plot: name some of {', '.join(run.layers)}")
    x, g = _transformed(run, image, group)
    partition = per_layer(run.feature_groups, layers)

    def pool(name: str, h: Tensor) -> Tensor:
        return pool_layer(name, h, partition[name])

    with torch.no_grad(), capture(run.model, layers, pool) as features:
        run.model(x)
    return {name: _layer_maps(name, h, group, g) for name, h in features.items()}


def image_views(run: OpenedRun, image: int = 0, group: Group | None = None) -> ImageViews:
    """Return the image itself under every element, also moved back."""
    group = group or run.group
    x, g = _transformed(run, image, group)
    return ImageViews(_as_picture(x.double()), _as_picture(_aligned(x, group, g)))


@styled()
def plot_features(
    runs: Sequence[OpenedRun],
    layers: Sequence[str] | None = None,
    image: int = 0,
    group: Group | None = None,
) -> Figure:
    """Draw an image in all orientations, and what the layers of each run make of it.

    This is the figure of the paper. Left as computed, right moved back, where an equivariant
    layer shows equal pictures: one block for each layer, one line for each run. A line shows the
    pooled map that varies most on the original image, on one scale of colours, and the relative
    error of the layer on this image. Grey is what left the frame.

    Args:
        runs: Trained runs with the same test images.
        layers: Which layers; by default the runs'.
        image: Which of their images.
        group: Which elements; by default the runs' group.
    """
    group = _check(runs, image, group)
    maps, names = [], []
    for run in runs:
        maps.append(feature_maps(run, layers, image, group))
        names.append(run.name)
    short, common = _short_names(names)
    return _draw(image_views(runs[0], image, group), maps, short, common, group.labels)


def _check(runs: Sequence[OpenedRun], image: int, group: Group | None) -> Group:
    """Return the group to plot, if the runs can be compared."""
    check_any(runs, "run")
    names = dict.fromkeys(str(run.group) for run in runs)
    if group is None and len(names) > 1:
        raise ValueError(f"the runs have the groups {', '.join(names)}: say which one to plot")
    first = runs[0]
    for other in runs[1:]:
        # one picture of the input stands for all runs
        if not torch.equal(_image(first, image), _image(other, image)):
            raise ValueError(
                f"image {image} of {first.name} ({first.record.data}) is not that of {other.name} "
                f"({other.record.data}): plot runs of one data set"
            )
    return group or first.group


def _image(run: OpenedRun, image: int) -> Tensor:
    count = len(run.images)
    if not 0 <= image < count:
        raise ValueError(f"image {image} is not there: {run.name} has images 0 to {count - 1}")
    return run.images[image]


def _transformed(run: OpenedRun, image: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return the image under every element (n, C, H, W), and the elements (n,)."""
    if not 2 <= len(group) <= MAX_ELEMENTS:
        raise ValueError(
            f"feature maps are shown for 2 to {MAX_ELEMENTS} elements; {group} has {len(group)}: "
            f"take rot4 or rot8"
        )
    g = torch.arange(len(group))
    x = _image(run, image).expand(len(group), -1, -1, -1)
    return group.act(x, g), g


def _layer_maps(name: str, h: Tensor, group: Group, g: Tensor) -> LayerMaps:
    if not torch.isfinite(h).all():
        raise ValueError(
            f"layer {name!r} returned NaN or infinite values on this image: it has no map to show"
        )
    h = h.double()
    channel = int(h[0].var((1, 2), correction=0).argmax())  # of (N, H, W)
    # L_G over the variance of the original maps; NaN where a map has no valid pixel
    views = h[1:]  # the first is the image itself
    errors = image_errors(h[:1].expand_as(views), views, group, g[1:])
    relative = errors[~errors.isnan()].mean() / h[0].var(correction=0).clamp_min(MIN_VARIANCE)
    shown = h[:, channel : channel + 1]  # (n, 1, H, W)
    aligned = _aligned(shown, group, g)
    return LayerMaps(shown[:, 0].numpy(), aligned[:, 0].numpy(), channel, float(relative))


def _aligned(maps: Tensor, group: Group, g: Tensor) -> Tensor:
    """Move maps back; NaN where a pixel is made of what was filled in, on the way there or back."""
    valid = group.valid(maps, g)
    if valid is None:
        valid = torch.ones_like(maps[:, :1], dtype=torch.bool)
    try:
        # the mask moves back like the maps: a pixel is known if all that it is made of is
        known = group.act_on_features(valid.double(), g, inverse=True) > 1 - 1e-6
    except ValueError as error:
        raise ValueError(f"maps cannot be moved back ({error}): take rotations, flips or scales") from None
    back = group.act_on_features(maps.double(), g, inverse=True)
    return back.masked_fill(~known, torch.nan)


def _as_picture(x: Tensor) -> Maps:
    if x.shape[1] == 3:
        return x.permute(0, 2, 3, 1).numpy()  # (n, H, W, 3)
    return x.mean(1).numpy()  # (n, H, W)


def _short_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Split off the words that all names end with; a single name is all common, on two lines.

    >>> _short_names(["cnn small seed 1", "ien-r4 small seed 1"])
    (['cnn', 'ien-r4'], 'small seed 1')
    """
    words = [name.split() for name in names]
    if len(names) == 1:
        first, *rest = words[0]
        return [""], "\n".join([first, " ".join(rest)]).strip()
    # as many words from the end as all have in common, but for the first word of each
    common: list[str] = []
    for last in zip(*(reversed(of_name[1:]) for of_name in words), strict=False):
        if len(set(last)) > 1:
            break
        common.insert(0, last[0])
    short = []
    for of_name in words:
        own = of_name[: len(of_name) - len(common)]
        short.append(plain(" ".join(own), MAX_NAME))
    return short, " ".join(common)


class _Layout(NamedTuple):
    """Where pictures go, in inches from the top left corner."""

    left: float
    """Of the pictures as computed."""
    middle: float
    """Where the aligned ones begin."""
    right: float
    tile: float
    """The side of a picture."""


def _layout(texts: Sequence[str], elements: int, rows: int) -> _Layout:
    left = 0.25 + 0.082 * max(map(len, texts))  # about the width of a letter
    largest = TILE
    if rows > MAX_LARGE_ROWS:
        largest = SMALL_TILE
    room = PAGE_WIDTH - left - HALF_GAP - NUMBERS_WIDTH
    tile = min(largest, room / (2 * elements))
    middle = left + elements * tile + HALF_GAP
    return _Layout(left, middle, middle + elements * tile, tile)


def _draw(
    inputs: ImageViews,
    maps: Sequence[Mapping[str, LayerMaps]],
    names: Sequence[str],
    common: str,
    labels: Sequence[str],
) -> Figure:
    """Place all pictures by hand, on one axes over the whole figure."""
    from matplotlib.figure import Figure

    layers = list(maps[0])
    texts = [*names, *common.splitlines(), *map(plain, layers), "input"]
    layout = _layout(texts, len(labels), len(layers) * len(maps))
    block_height = LAYER_NAME_HEIGHT + len(maps) * layout.tile
    first_block = HEADS_HEIGHT + layout.tile
    size = layout.right + NUMBERS_WIDTH, first_block + len(layers) * block_height + MARGIN
    figure = Figure(figsize=size)
    axes = figure.add_axes((0, 0, 1, 1))

    _draw_heads(axes, layout, labels)
    small: dict[str, Any] = {"fontsize": 8.5, "color": GREY, "va": "center"}
    axes.text(MARGIN, 0.22, common, **small)
    axes.text(layout.right + 0.1, 0.22, "relative\nerror", **small)
    _draw_pictures(axes, layout, HEADS_HEIGHT, inputs.images, inputs.aligned, "input", "gray")
    for k, layer in enumerate(layers):
        # a rule, the name of the layer, and a line of pictures for each run
        top = first_block + k * block_height
        axes.plot([MARGIN, layout.right + 0.7], [top + 0.07] * 2, color=GRID, linewidth=0.8)
        axes.text(MARGIN, top + 0.22, plain(layer), weight="bold", va="center")
        for i, (name, of_run) in enumerate(zip(names, maps, strict=True)):
            shown, y = of_run[layer], top + LAYER_NAME_HEIGHT + i * layout.tile
            _draw_pictures(axes, layout, y, shown.maps, shown.aligned, name, "viridis")
            middle = y + layout.tile / 2
            axes.text(layout.right + 0.1, middle, readable(shown.relative), va="center", fontsize=9)
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0), aspect="auto")  # inches, downwards
    axes.set_axis_off()
    return figure


def _draw_heads(axes: Axes, layout: _Layout, labels: Sequence[str]) -> None:
    shown = [plain(label, 9) for label in labels]
    back = "moved back"
    if all(label.endswith("°") for label in shown[1:]):
        shown[0] = "0°"  # among angles, the identity is one as well
        back = "rotated back"
    for left, title in ((layout.left, "as computed"), (layout.middle, back)):
        axes.text(left, 0.2, title, weight="bold", fontsize=10.5, va="center")
        for i, label in enumerate(shown):
            x = left + (i + 0.5) * layout.tile
            axes.text(x, 0.54, label, ha="center", fontsize=8.5, color=GREY)


def _draw_pictures(
    axes: Axes, layout: _Layout, top: float, maps: Maps, aligned: Maps, name: str, colours: str
) -> None:
    """Draw one line of pictures on one scale of colours, with a name at their left."""
    from matplotlib import colormaps

    axes.text(MARGIN, top + layout.tile / 2, name, va="center", fontsize=9)
    # that of the maps as computed, for all orientations: equal maps have equal colours
    scale: dict[str, Any] = {
        "cmap": colormaps[colours].with_extremes(bad=OUTSIDE_COLOUR),
        "vmin": maps.min(),
        "vmax": maps.max(),
    }
    gap = 0.02
    for left, pictures in ((layout.left, maps), (layout.middle, aligned)):
        for i, picture in enumerate(pictures):
            if picture.ndim == 3:  # colours have no scale, and no value that means outside
                picture = np.where(np.isnan(picture), 0.89, picture.clip(0, 1))
            x = left + i * layout.tile
            frame = x + gap, x + layout.tile - gap, top + layout.tile - gap, top + gap
            axes.imshow(picture, interpolation="none", aspect="auto", extent=frame, **scale)
