"""What the pages of runs and of any model share: curves, plots, geometry, and a size that fits."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...measuring.measure import measure
from ...measuring.report import Report
from ..opened import Opened
from ..plots.style import settle, styled
from .explorer import Exploration
from .html import fill
from .sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ...geometry.doctor import Diagnosis

__all__ = [
    "Geometry",
    "Plot",
    "Progress",
    "as_address",
    "check_place",
    "examine",
    "fitting_page",
    "measure_sweep",
    "now",
    "sweep_plots",
]

MAX_BYTES = 10_000_000
"""How large the page may become: browsers open that at once, and it can be sent by mail."""

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


def check_place(path: Path | str) -> Path:
    """Check that a page can be made and written there, before the work begins."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write, such as {path / 'report.html'}")
    with styled():  # says what is missing
        pass
    return path


def now() -> str:
    """When the page is made."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


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
        plots.append(Plot(f"Error in each layer, over {moves}", errors_caption, as_address(errors)))
        plots.append(Plot(title, caption, as_address(curves)))
    return plots


def as_address(figure: Figure) -> str:
    """Write a figure as SVG in a data URI."""
    buffer = io.BytesIO()
    with styled():  # some settings of the style count when a figure is written
        settle(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # as an image of its own, it cannot clash with the ids and styles of the page
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


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
