"""The page of any model: table, explorer, plots and geometry in one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ..._files import replace_file
from ...groups.group import Group
from ...loss.feature_groups import Spec
from ...measuring.choose_layers import choose_layers
from ...measuring.inputs import try_model
from ...measuring.measure import measure
from ..opened import Opened
from .explorer import SHOWN_IMAGES, SHOWN_MAPS, explore, say_nothing
from .headline import describe_model
from .outputs import output_of, return_only
from .parts import (
    Progress,
    check_place,
    examine,
    fitting_page,
    measure_sweep,
    now,
    sweep_plots,
)
from .sweeps import sweeps_of

__all__ = ["write_model_page"]

CURVE_IMAGES = 32
"""How many images the curves are measured on, at most: every angle takes a pass of its own."""


def write_model_page(
    model: nn.Module,
    images: Tensor,
    path: Path | str,
    *,
    name: str,
    group: Group,
    layers: Sequence[str] | None = None,
    feature_groups: Spec | Mapping[str, Spec] = 1,
    output: str | None = None,
    image_names: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Path:
    """Write the page of a model to one file that loads nothing from elsewhere.

    It opens on an image whose prediction changes, at the angle where it does. Models that return
    (B, classes) have predictions, those that return maps (B, C, H, W) one at each pixel; of other
    outputs the relative error is shown.

    Args:
        model: Any module that takes images; it is left in eval mode.
        images: (N, C, H, W), square, float32 in [0, 1]; at least two.
        path: The file to write.
        name: What to call the model.
        group: The transformations of the table; the curves and the explorer have all angles, or
            all factors if it only scales.
        layers: Names of layers; by default the model's direct children that return maps.
        feature_groups: Which channels are pooled, as :func:`ien.measure` takes it.
        output: The key, index or attribute of what to look at, if the model returns several things.
        image_names: One for each image; by default their numbers.
        settings: More lines for the table of settings.
        notes: Warnings to write at the top.
        progress: Called with a line of text about what is going on.

    Returns:
        The path.

    Raises:
        ValueError: Model, images and group do not fit together, or the output is not understood.

    Do not use it to compare two models: write a page for each, or train runs.
    """
    path = check_place(path)
    say = progress or say_nothing
    _check_images(images)
    model.eval()
    # errors about the output and the layers come before the work that takes minutes
    few = images[:2]
    with torch.no_grad():
        try_model(model, few.clone())
        if output is not None:
            return_only(model, output, few.clone())
        output_of(model, few.clone())
        chosen = tuple(layers or choose_layers(model, few.clone()))
    names = tuple(image_names) or tuple(map(str, range(len(images))))
    opened = Opened(
        name=name,
        model=model,
        layers=chosen,
        feature_groups=feature_groups,
        group=group,
        images=images,
        image_names=names,
    )

    say(f"measuring {name} under {group}")
    report = measure(model, images, group, layers, feature_groups)
    fewer = replace(opened, images=images[:CURVE_IMAGES])
    reports = []
    for sweep in sweeps_of([group]):
        reports.append((sweep, measure_sweep([fewer], sweep, say)))
    (of_first_sweep,) = reports[0][1].values()
    variances = {layer: found.variance for layer, found in of_first_sweep.layers.items()}
    exploration = explore([opened], [variances], SHOWN_IMAGES, SHOWN_MAPS, say)

    say("examining the geometry of the network")
    geometry = examine(opened)
    say("drawing")
    plots = sweep_plots(reports, f"{len(fewer.images):,} images")
    header, rows = report.table()
    elements_header, *elements = report.element_table()
    lines = {
        "model": name,
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        **(settings or {}),
        "image size": "×".join(map(str, images.shape[1:])),
        "group": str(group),
        "output": _output_line(output, exploration.kind),
    }
    findings = None
    if geometry.diagnosis is not None:
        findings = len(geometry.diagnosis.findings)
    values = {
        "headline": describe_model(reports[0][0], of_first_sweep, findings),
        "name": name,
        "made": now(),
        "notes": notes,
        "title": report.title[:1].upper() + report.title[1:],
        "header": header,
        "rows": rows,
        "remarks": report.remarks(),
        "elements_header": elements_header,
        "elements": elements,
        "figures": plots,
        "findings": [([name], geometry)],
        "settings": [(field, [value]) for field, value in lines.items()],
        "measured": len(fewer.images),
    }
    text = fitting_page("model.html", exploration, "this model", "name fewer layers", values)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_bytes(text.encode()))
    return path


def _check_images(images: Tensor) -> None:
    if len(images) < 2:
        raise ValueError(f"the page needs at least two images, better a hundred; got {len(images)}")
    channels, height, width = images.shape[1:]
    if height != width:
        side = min(height, width)
        raise ValueError(
            f"the page rotates images by every angle, for which they must be square; these are "
            f"{height}×{width}: scale them, as by --size {channels}x{side}x{side}"
        )


def _output_line(output: str | None, kind: str) -> str:
    text = {
        "classes": "scores of classes; the prediction is the largest",
        "pixels": "maps; each pixel has the class of the largest channel",
        "values": "values; they are compared by their relative error",
    }[kind]
    if output is None:
        return text
    return f"{output}: {text}"
