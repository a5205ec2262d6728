"""The page of runs: table, explorer, plots, geometry and settings in one self-contained file."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..._files import replace_file
from ...measuring.measure import measure
from ...measuring.report import Report
from ..opened import Opened, OpenedRun, open_runs
from ..palette import colours_of, plain_names
from ..plots.style import styled
from ..records import Record, read_field, read_number
from ..rows import summarise
from .explorer import SHOWN_IMAGES, SHOWN_MAPS, Exploration, Sweep, explore, groups_of, sweeps_of
from .headline import Headline, compare_runs, compare_segmenters
from .html import fill

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ...geometry.doctor import Diagnosis

__all__ = [
    "Geometry",
    "Plot",
    "Progress",
    "check_place",
    "examine",
    "fitting_page",
    "measure_sweep",
    "now",
    "say_nothing",
    "sweep_plots",
    "write_runs_page",
]

MAX_BYTES = 10_000_000
"""How large the page may become: browsers open that at once, and it can be sent by mail."""

MAX_SEGMENTED = 32
"""How many test images curves are measured on if the networks segment: their maps are large."""

Progress = Callable[[str], None]


class Plot(NamedTuple):
    """A picture on the page."""

    title: str
    caption: str
    address: str
    """A data URI: the page loads nothing."""


@dataclass(frozen=True)
class Geometry:
    """What the doctor says about one network: its diagnosis, or why there is none."""

    diagnosis: Diagnosis | None
    error: str = ""


def write_runs_page(
    folders: Sequence[Path | str],
    path: Path | str,
    data: str | None = None,
    *,
    measured: int = 200,
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
    exploration = explore(runs, variances, SHOWN_IMAGES, SHOWN_MAPS, say)

    say("examining the geometry of the networks")
    geometry = [examine(run) for run in runs]
    say("drawing")
    text = _page(runs, geometry, _plots(runs, reports), exploration, reports[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_bytes(text.encode()))
    return path


def check_place(path: Path | str) -> Path:
    """Check that a page can be made and written there, before the work begins."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write, such as {path / 'report.html'}")
    with styled():  # says what is missing
        pass
    return path


def say_nothing(text: str) -> None:
    """Do without progress."""


def now() -> str:
    """When the page is made."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


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


def measure_sweep(runs: Sequence[Opened], sweep: Sweep, say: Progress) -> dict[str, Report]:
    """Measure networks under all elements of a sweep; name to report."""
    values = {"rotation": "angles", "scale": "factors"}[sweep.kind]
    reports = {}
    for run in runs:
        say(f"measuring {run.name} at {len(sweep.values)} {values}")
        reports[run.name] = measure(
            run.model, run.images, sweep.group, run.layers, run.feature_groups, labels=run.labels
        )
    return reports


def examine(run: Opened) -> Geometry:
    """Ask the doctor about a network, at the size of its images."""
    from ...geometry.doctor import doctor

    channels, height, width = run.images.shape[1:]
    try:
        return Geometry(doctor(run.model, (channels, height, width)))
    except ValueError as error:  # a model that it cannot follow: the page says so
        return Geometry(None, str(error))


def sweep_plots(measured: Sequence[tuple[Sweep, Mapping[str, Report]]], images: str) -> list[Plot]:
    """Draw the errors of layers, and those at each angle or factor.

    Args:
        measured: The reports of some networks along each sweep.
        images: Which images they were measured on, for the captions.
    """
    from ..plots.angles import plot_angles, plot_factors
    from ..plots.errors import plot_errors

    plots = []
    for sweep, reports in measured:
        others = len(sweep.values) - 1  # but for the identity
        if sweep.kind == "rotation":
            moves = f"{others} rotations"
            title = "Error at each angle"
            caption = f"Measured on {images}, every {sweep.values[1]:g}°."
            curves = plot_angles(reports, narrow=True)
        else:
            moves = f"{others} scalings"
            title = "Error at each factor"
            caption = f"Measured on {images}, from ×{sweep.values[0]:.3g} to ×{sweep.values[-1]:.3g}."
            curves = plot_factors(reports, narrow=True)
        if all(report.accuracy is not None for report in reports.values()):
            title = title.replace("Error", "Error and accuracy")
        elif any(report.output is not None for report in reports.values()):
            title = title.replace("Error", "Error and predictions")
        errors_caption = f"Relative error over {moves} of {images}; 0 is equivariant, about 2 is unrelated."
        errors = plot_errors(reports, narrow=True)
        plots.append(Plot(f"Error in each layer, over {moves}", errors_caption, _as_address(errors)))
        plots.append(Plot(title, caption, _as_address(curves)))
    return plots


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
        plots.append(Plot("Training", caption, _as_address(plot_training(trained, narrow=True))))
    if len(runs) > 1 and runs[0].labels is not None:
        rows, names = [], []
        for run in runs:
            rows += summarise([run.record])
            names.append(run.name)
        caption = "Test accuracy against multiply-accumulates for one image."
        plots.append(Plot("Accuracy and cost", caption, _as_address(plot_costs(rows, names, narrow=True))))
    return plots


def _as_address(figure: Figure) -> str:
    """Write a figure as SVG in a data URI."""
    buffer = io.BytesIO()
    with styled():  # some settings of the style count when a figure is written
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # as an image of its own, it cannot clash with the ids and styles of the page
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


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
        "settings": _settings(runs),
        "findings": _same_together(runs, geometry),
        "nan": math.nan,  # for a layer that a run does not have
    }
    return fitting_page("runs.html", exploration, f"{len(runs)} runs", "give fewer runs", values)


def fitting_page(
    template: str, exploration: Exploration, what: str, remedy: str, values: Mapping[str, object]
) -> str:
    """Fill a template with an explorer of as many images and maps as :data:`MAX_BYTES` allow.

    Args:
        template: The file in ``templates/``.
        exploration: Everything that the explorer could show.
        what: What the page is about, for the error message.
        remedy: What would make it smaller.
        values: What else the template shows.
    """
    size = 0
    for images, maps in exploration.smaller():  # until it fits
        content = json.dumps(exploration.cut(images, maps), allow_nan=False, separators=(",", ":"))
        text = fill(
            template,
            script="explorer.js",
            explorer=content.replace("<", "\\u003c"),  # no text in it can end the script element
            left_out=_left_out(exploration, images, maps, remedy),
            kind=exploration.kind,
            has_masks="mask" in exploration.content["images"][0],
            labelled=exploration.content["images"][0]["label"] is not None,
            scales=len(exploration.content["sweeps"]) > 1,
            changing=exploration.note,
            **values,
        )
        size = len(text.encode())
        if size <= MAX_BYTES:
            return text
    raise ValueError(f"a page of {what} has at least {size:,} bytes, and {MAX_BYTES:,} are allowed: {remedy}")


def _left_out(exploration: Exploration, images: int, maps: int, remedy: str) -> str:
    """Say what the page had to leave out; nothing if it holds everything."""
    fewer = []
    if images < exploration.images:
        fewer.append(f"{images} of {exploration.images} images")
    if maps < exploration.maps:
        fewer.append(f"{maps} of {exploration.maps} maps of each layer")
    if not fewer:
        return ""
    return f"To keep the file small it holds {' and '.join(fewer)}: {remedy} to see more."


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


def _settings(runs: Sequence[OpenedRun]) -> list[tuple[str, list[str], bool]]:
    """Return (field, its value in each run, whether they differ), those that differ first."""
    configs = [run.record.config for run in runs]
    fields: dict[str, None] = {}
    for config in configs:
        fields |= dict.fromkeys(config)
    different, equal = [], []
    for field in fields:  # a kind of runs may have settings that others lack
        values = [_setting(config.get(field)) for config in configs]
        if len(set(values)) > 1:
            different.append((field, values, True))
        else:
            equal.append((field, values, False))
    return different + equal


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
