"""The page of runs: table, explorer, plots, geometry and settings in one self-contained file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..._files import replace_file
from ...measuring.report import Report
from ..opened import OpenedRun, open_runs
from ..palette import colours_of, plain_names
from ..records import Record, read_field, read_number
from ..rows import summarise
from .explorer import SHOWN_IMAGES, SHOWN_MAPS, Exploration, explore, say_nothing
from .headline import Headline, compare_runs, compare_segmenters
from .parts import (
    Geometry,
    Plot,
    Progress,
    as_address,
    check_place,
    examine,
    fitting_page,
    measure_sweep,
    now,
    sweep_plots,
)
from .sweeps import Sweep, groups_of, sweeps_of

__all__ = ["write_runs_page"]

MAX_SEGMENTED = 32
"""How many test images curves are measured on if the networks segment: their maps are large."""

Setting = tuple[str, list[str]]
"""The name of a field, and its values."""


def write_runs_page(
    folders: Sequence[Path | str],
    path: Path | str,
    data: str | None = None,
    *,
    measured: int = 200,
    shown: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the page of finished runs to one file that loads nothing from elsewhere.

    Args:
        folders: Run folders that were tested on the same images, of networks that classify or of
            networks that segment.
        path: The file to write.
        data: Where their data set is now, if it was moved.
        measured: How many test images the curves are measured on, at most; no more than 32 for
            networks that segment.
        shown: How many images the explorer shows, at most; fewer make a smaller file.
        progress: Called with a line of text about what is going on.

    Returns:
        The path.

    Raises:
        ValueError: The runs cannot be compared, or are too many for one page.
    """
    path = check_place(path)
    say = progress or say_nothing
    runs = _in_plain_words(_with_equal_images(open_runs(folders, data, measured)))

    reports = []
    for sweep in sweeps_of(groups_of(runs)):
        reports.append((sweep, measure_sweep(runs, sweep, say)))
    # the variance of the original maps: that of any sweep will do
    variances = []
    for report in reports[0][1].values():
        variances.append({name: layer.variance for name, layer in report.layers.items()})
    exploration = explore(runs, variances, shown or SHOWN_IMAGES, SHOWN_MAPS, say)

    say("examining the geometry of the networks")
    geometry = [examine(run) for run in runs]
    say("drawing")
    text = _page(runs, geometry, _plots(runs, reports), exploration, reports[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_bytes(text.encode()))
    return path


def _with_equal_images(runs: Sequence[OpenedRun]) -> list[OpenedRun]:
    """Return the runs with as many images as all of them have, which must be the same images."""
    first = runs[0]
    count = min(len(run.images) for run in runs)
    if first.masks is not None:
        count = min(count, MAX_SEGMENTED)
    cut = []
    for run in runs:
        if run.labels is None and run.masks is None:
            raise ValueError(
                f"{run.folder} neither classifies nor segments, as this page needs; look at its layers "
                f"with ien measure {run.folder} --out page, and at trackers with ien plot tracking and ien "
                f"plot turning"
            )
        images = run.images[:count]
        # the explorer shows all runs on one image
        if images.shape != first.images[:count].shape or not torch.equal(images, first.images[:count]):
            raise ValueError(
                f"the runs were tested on different images and cannot be shown side by side: "
                f"{first.folder} on {_tested_on(first.record)}, {run.folder} on {_tested_on(run.record)}; "
                f"write one page for each"
            )
        labels = None if run.labels is None else run.labels[:count]
        masks = None if run.masks is None else run.masks[:count]
        cut.append(replace(run, images=images, labels=labels, masks=masks))
    return cut


def _in_plain_words(runs: Sequence[OpenedRun]) -> list[OpenedRun]:
    """Name the runs as a reader would who does not know the tables."""
    copies = "scaled"
    for sweep in sweeps_of(groups_of(runs)):
        if sweep.kind == "rotation":
            copies = "rotated"
    names = plain_names([run.name for run in runs], copies)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _tested_on(record: Record) -> str:
    return f"{record.source} {record.data}, {record.tested_on} set, {record.test:,} images"


def _plots(runs: Sequence[OpenedRun], measured: Sequence[tuple[Sweep, Mapping[str, Report]]]) -> list[Plot]:
    """Draw every plot that these runs allow; ``measured`` holds their reports along each sweep."""
    from ..plots.costs import plot_costs
    from ..plots.training import plot_training

    plots = sweep_plots(measured, f"the first {len(runs[0].images):,} test images")
    trained = {}
    for run in runs:
        if (run.folder / "metrics.jsonl").exists():  # not for runs with the weights of another
            trained[run.name] = run.folder
    if trained:
        caption = "Loss, accuracy and each layer's term, by epoch; with a target, its multipliers."
        if runs[0].masks is not None:
            caption = "Loss and the share of pixels that are right, by epoch; each layer's term, if any."
        plots.append(Plot("Training", caption, as_address(plot_training(trained, narrow=True))))
    if len(runs) > 1 and runs[0].labels is not None:
        rows, names = [], []
        for run in runs:
            rows += summarise([run.record])
            names.append(run.name)
        caption = "Test accuracy against multiply-accumulates for one image."
        plots.append(Plot("Accuracy and cost", caption, as_address(plot_costs(rows, names, narrow=True))))
    return plots


def _page(
    runs: Sequence[OpenedRun],
    geometry: Sequence[Geometry],
    plots: Sequence[Plot],
    exploration: Exploration,
    measured: tuple[Sweep, Mapping[str, Report]] | None = None,
) -> str:
    """Return the page as text, with as many images and maps as :data:`MAX_BYTES` allow.

    ``measured`` holds the reports along the first sweep, for the headline.
    """
    # dictionaries, which keep each once and in order
    layers: dict[str, None] = {}
    commits: dict[str, None] = {}
    machines: dict[str, None] = {}
    for run in runs:
        layers |= dict.fromkeys(run.record.layers)
        machines[run.record.machine] = None
        if run.record.commit:
            commits[run.record.commit] = None
    different, equal = _settings(runs)
    headline: Headline | None = None
    changed = dict.fromkeys([run.name for run in runs], math.nan)
    if measured is not None:
        sweep, reports = measured
        headline = compare_runs(sweep, reports, {run.name: run.record.macs for run in runs})
        for name, report in reports.items():
            if report.output is not None:
                changed[name] = report.output.flip_rate
    segments = runs[0].masks is not None
    lines = _lines(runs)
    elements: dict[str, None] = {}
    for line in lines:
        elements |= dict.fromkeys(line["dice"].get("per_element", ()))
    if segments:
        headline = compare_segmenters({run.name: run.record for run in runs})
    values: dict[str, Any] = {
        "headline": headline,
        "changed": changed,
        "segments": segments,
        "made": now(),
        "names": [run.name for run in runs],
        "commits": list(commits),
        "machines": list(machines),
        "runs": lines,
        "elements": list(elements),
        "layers": list(layers),
        "measured": len(runs[0].images),
        "data": _tested_on(runs[0].record),
        "figures": plots,
        "different": different,
        "equal": equal,
        "findings": _same_together(runs, geometry),
        "nan": math.nan,  # for a layer that a run does not have
    }
    return fitting_page("runs.html", exploration, f"{len(runs)} runs", "give fewer runs", values)


def _lines(runs: Sequence[OpenedRun]) -> list[dict[str, Any]]:
    """Return what the table shows of each run."""
    lines = []
    colours = colours_of([run.name for run in runs])
    for run, colour in zip(runs, colours, strict=True):
        relative = {name: layer.relative for name, layer in run.record.layers.items()}
        lines.append(
            {
                "name": run.name,
                "colour": colour,
                "folder": str(run.folder),
                "record": run.record,
                "layers": relative,
                "dice": _dice(run),
            }
        )
    return lines


def _dice(run: OpenedRun) -> dict[str, Any]:
    """Return what the tables show of a network that segments; nothing for others."""
    if run.masks is None:
        return {}
    content = run.record.content
    per_element = read_field(content, "dice_per_element", kind=dict)
    return {
        "dice": read_number(content, "dice"),
        "dice_under_group": read_number(content, "dice_under_group"),
        "consistency": read_number(content, "consistency"),
        "per_element": {label: read_number(per_element, label) for label in per_element},
    }


def _settings(runs: Sequence[OpenedRun]) -> tuple[list[Setting], list[Setting]]:
    """Return the settings that differ with a value for each run, and the others with one value."""
    configs = [run.record.config for run in runs]
    fields: dict[str, None] = {}
    for config in configs:
        fields |= dict.fromkeys(config)
    different, equal = [], []
    for field in fields:  # a kind of runs may have settings that others lack
        values = [_setting(config.get(field)) for config in configs]
        if len(set(values)) > 1:
            different.append((field, values))
        else:
            equal.append((field, values[:1]))
    return different, equal


def _setting(value: object) -> str:
    if value is True:
        return "yes"
    if value is False:
        return "no"
    if value is None or value == "":
        return "–"
    return str(value)


def _same_together(
    runs: Sequence[OpenedRun], geometry: Sequence[Geometry]
) -> list[tuple[list[str], Geometry]]:
    """Put runs together about which the doctor says the same."""
    together: list[tuple[list[str], Geometry]] = []
    for run, found in zip(runs, geometry, strict=True):
        for names, other in together:
            if other == found:
                names.append(run.name)
                break
        else:  # nothing like it so far
            together.append(([run.name], found))
    return together
