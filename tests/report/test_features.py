"""Feature maps in all orientations: numbers against rot90 and loops, and the figure against the numbers."""

import copy
import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien.report.opened import OpenedRun
from ien.report.plots.features import feature_maps, image_views, plot_features
from ien.report.plots.style import save_figure
from tests.helpers import toy

pytest.importorskip("matplotlib")
OCCLUDE = ien.custom("occlude", {"left": lambda x: x * 0}, feature_actions="identity")


def net(kernel: int = 3, channels: int = 1) -> nn.Sequential:
    """Two layers with maps of 4 feature groups of 2; kernels of 1 make it equivariant."""
    first, second = (nn.Conv2d(c, 8, kernel, padding=kernel // 2) for c in (channels, 8))
    return nn.Sequential(first, nn.ELU(), second, nn.ELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


def opened(name: str = "a small seed 1", group: str = "rot4", **changes: Any) -> OpenedRun:
    images = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    record, config = SimpleNamespace(data="toy"), toy.config()
    run = OpenedRun(
        folder=Path(name),
        name=name,
        model=net(),
        layers=("1", "3"),
        feature_groups=2,
        group=ien.group(group),
        images=images,
        labels=torch.zeros(3),
        config=config,
        record=record,
    )
    return replace(run, **changes)


def pooled(model: nn.Module, layer: int, x: Tensor) -> Tensor:
    """Maps of one image (1, 1, H, W) after ``layer``, pooled by a loop over channels: (4, H, W)."""
    with torch.no_grad():
        h = model[: layer + 1](x)[0]
    return torch.stack([torch.maximum(h[2 * i], h[2 * i + 1]) for i in range(4)]).double()


def pictures(figure: Any) -> list[Any]:
    return list(figure.axes[0].images)


def written(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_maps_are_those_of_the_rotated_image_and_aligned_ones_rotated_back() -> None:
    run = opened()
    for layer in (1, 3):
        found = feature_maps(run, image=1)[str(layer)]
        brute = [pooled(run.model, layer, run.images[1:2].rot90(k, (2, 3))) for k in range(4)]
        channel = max(range(4), key=lambda c: float(brute[0][c].var(correction=0)))
        assert found.channel == channel
        for k, h in enumerate(brute):
            assert np.allclose(found.maps[k], h[channel], atol=1e-6)
            assert np.array_equal(found.aligned[k], np.rot90(found.maps[k], -k))
        errors = [(h - brute[0].rot90(k, (1, 2))).square().mean() for k, h in enumerate(brute) if k]
        expected = float(sum(errors) / 3 / brute[0].var(correction=0))
        assert abs(found.relative - expected) < 1e-5 * expected


def test_an_equivariant_net_shows_equal_pictures_and_another_does_not() -> None:
    for kernel, equal in ((1, True), (3, False)):
        for found in feature_maps(opened(model=net(kernel))).values():
            differences = [np.abs(aligned - found.aligned[0]).max() for aligned in found.aligned[1:]]
            assert (max(differences) < 1e-6) == equal and (found.relative < 1e-10) == equal
            assert not np.allclose(found.maps[1], found.maps[0], atol=1e-2)  # unless aligned


@pytest.mark.parametrize("group", ["flip", "rot4xflip", "rot2"])
def test_permutations_are_undone_bit_for_bit(group) -> None:
    shown = image_views(opened(group=group))
    assert all(np.array_equal(picture, shown.images[0]) for picture in shown.aligned)


def test_what_left_the_map_is_nan_and_the_rest_close_to_the_original() -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 40), indexing="ij")
    smooth = (1 + torch.sin(3 * x + y))[None, None].float()
    shown = image_views(opened(group="rot8", images=smooth))
    radius = torch.maximum((x + y).abs(), (x - y).abs()).numpy()  # in the frame turned by 45°: at most √2
    for k in (1, 3, 5, 7):
        gone = np.isnan(shown.aligned[k])
        inside = (radius < 2**0.5 - 0.2) & (torch.maximum(x.abs(), y.abs()).numpy() < 0.9)
        assert gone[radius > 2**0.5 + 0.05].all() and not gone[inside].any()
        assert np.nanmax(np.abs(shown.aligned[k] - shown.images[0])) < 0.02
        assert not np.isnan(shown.images[k]).any()


def test_a_shrunk_map_keeps_nearly_all_and_an_enlarged_one_loses_its_border() -> None:
    shown = image_views(opened(group="scale0.5,2"))
    assert not np.isnan(shown.aligned[1][1:-1, 1:-1]).any()
    assert np.isnan(shown.aligned[2][0]).all() and not np.isnan(shown.aligned[2][4:8, 4:8]).any()


def test_the_figure_shows_inputs_and_maps_as_computed_and_aligned() -> None:
    """And leaves the network and the images as they were."""
    runs = [opened("first small seed 1"), opened("second small seed 1", model=net(1))]
    model, before, images = runs[0].model, copy.deepcopy(runs[0].model.state_dict()), runs[0].images.clone()
    figure = plot_features(runs, image=2)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(runs[0].images, images) and not any(m._forward_hooks for m in model.modules())
    shown, inputs = pictures(figure), image_views(runs[0], 2)
    rows = [shown[i : i + 8] for i in range(0, len(shown), 8)]
    assert len(rows) == 1 + 2 * 2
    expected = [(inputs.images, inputs.aligned)]
    for layer in ("1", "3"):
        expected += [feature_maps(run, image=2)[layer][:2] for run in runs]
    for row, (maps, aligned) in zip(rows, expected, strict=True):
        for picture, values in zip(row, [*maps, *aligned], strict=True):
            assert np.array_equal(picture.get_array(), values)
            assert picture.get_clim() == (maps.min(), maps.max())  # one scale for all orientations


def test_pictures_do_not_overlap_and_lie_on_the_page() -> None:
    figure = plot_features([opened(f"run {i}") for i in range(3)], group=ien.rotation(12))
    boxes = [picture.get_extent() for picture in pictures(figure)]
    width, height = figure.get_size_inches()
    assert width <= 9.001 and len(boxes) == 24 * 7
    assert all(0 < left < right < width and 0 < top < bottom < height for left, right, bottom, top in boxes)
    places = sorted((round(top, 3), left, right) for left, right, _, top in boxes)
    assert all(a[2] < b[1] for a, b in itertools.pairwise(places) if a[0] == b[0])


def test_the_figure_names_runs_layers_angles_and_errors() -> None:
    runs = [opened("first small seed 1"), opened("second small seed 1")]
    figure = plot_features(runs, ["3"])
    shown = written(figure)
    assert {"first", "second", "small seed 1", "3", "input", "as computed", "rotated back"} <= set(shown)
    assert [text for text in shown if "°" in text] == ["0°", "90°", "180°", "270°"] * 2
    for run in runs:
        assert f"{feature_maps(run)['3'].relative:.2g}" in shown
    alone = written(plot_features(runs[:1]))
    assert "first\nsmall seed 1" in alone
    assert "identity" in written(plot_features(runs, group=ien.reflection()))


def test_colour_images_are_shown_in_colour(tmp_path) -> None:
    images = torch.rand(1, 3, 12, 12)
    run = opened(model=net(channels=3), images=images, group="rot8")
    picture = pictures(plot_features([run]))[0]
    assert np.allclose(picture.get_array(), images[0].permute(1, 2, 0))
    save_figure(plot_features([run]), tmp_path / "colour")
    two = image_views(opened(images=torch.rand(1, 2, 12, 12)))
    assert two.images.shape == (4, 12, 12)


def test_files_hold_the_names_as_text_and_are_the_same_every_time(tmp_path) -> None:
    from PIL import Image

    runs = [opened("<b>&amp;$\\frac{"), opened("_two\nlines\x00$")]
    first, second = (save_figure(plot_features(runs), tmp_path / name) for name in ("a", "b"))
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    shown = "".join(ET.parse(first[1]).getroot().itertext())
    assert "<b>&amp;$\\frac{" in shown and "_two lines $" in shown
    with Image.open(first[0]) as image:
        assert len(np.unique(np.asarray(image))) > 50


@pytest.mark.parametrize(
    ("others", "options", "match"),
    [
        ([{"images": torch.rand(3, 1, 12, 12)}], {}, r"image 0 of a small seed 1 \(toy\) is not that of b"),
        ([{"group": "rot8"}], {}, "groups rot4, rot8: say which"),
        ([], {"image": 3}, "image 3 is not there: a small seed 1 has images 0 to 2"),
        ([], {"image": -1}, "image -1 is not there: a small seed 1 has images 0 to 2"),
        ([], {"layers": ["33"]}, r"no layer '33'.*3"),
        ([], {"layers": []}, "no layer to plot: name some of 1, 3"),
        ([], {"group": OCCLUDE}, r"cannot be moved back \('left' of occlude is a black box"),
        ([], {"group": ien.rotation(72)}, r"2 to 12 elements.*take rot4 or rot8"),
        ([], {"group": ien.rotation(1)}, r"2 to 12 elements.*take rot4 or rot8"),
    ],
)
def test_what_cannot_be_shown_is_an_error_that_says_what_can(others, options, match) -> None:
    with pytest.raises((ValueError, KeyError), match=match):
        plot_features([opened(), *(opened("b", **changes) for changes in others)], **options)


def test_no_runs_are_an_error_and_runs_of_two_groups_need_one() -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_features([])
    assert plot_features([opened(), opened("b", group="rot8")], group=ien.rotation(4))


def test_maps_that_are_no_numbers_are_an_error_and_constant_ones_are_not() -> None:
    broken = net()
    with torch.no_grad():
        broken[2].bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="layer '3' returned NaN"):
        plot_features([opened(model=broken)])
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.zero_()
    assert feature_maps(opened(model=broken))["3"].relative == 0
    plot_features([opened(model=broken)]).draw_without_rendering()
