"""The HTML report: from run folders to one self-contained page with table, plots, settings and explorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..._files import replace_file
from ...measuring.measure import measure
from ...measuring.report import Report
from ...training.run_folder import read_config
from ..opened import Subject, open_runs
from ..records import summarise
from .explorer import Track, explore, groups_of, tracks_of
from .render import LIMIT, Examined, Figure, data_of, page
from .svg import as_svg

__all__ = ["write_report"]

Progress = Callable[[str], None]


def write_report(
    folders: Sequence[Path | str],
    path: Path | str,
    data: str | None = None,
    *,
    images: int = 10,
    maps: int = 4,
    measured: int = 200,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Path:
    """Write the page of these finished runs to ``path``, one file that loads nothing from elsewhere.

    ``data`` is where their data set is now, if it was moved. The curves are measured on the first
    ``measured`` test images; the explorer shows up to ``images`` of them and ``maps`` maps of each layer,
    fewer where the page would become larger than ``limit`` bytes. ``progress`` is told what is going on.
    """
    path, say = Path(path), progress or _ignore
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write, such as {path / 'report.html'}")
    if min(images, maps, measured) < 1:
        raise ValueError(f"a report needs at least one image and map; got {images=}, {maps=}, {measured=}")
    _needed()
    if trackers := [folder for folder in folders if read_config(Path(folder)).TASK != "classify"]:
        raise ValueError(
            f"{trackers[0]} is a tracker, and a report is of networks that classify: look at it with "
            f"ien plot tracking, ien plot turning and ien measure"
        )
    subjects = _side_by_side(open_runs(folders, data, measured))
    measured_along = [(track, _measure(subjects, track, say)) for track in tracks_of(groups_of(subjects))]
    reports = measured_along[0][1].values()
    variances = [{name: layer.variance for name, layer in found.layers.items()} for found in reports]
    exploration = explore(subjects, variances, images, maps, say)
    say("examining the geometry of the networks")
    findings = [_examine(subject) for subject in subjects]
    say("drawing")
    text = page(subjects, findings, _figures(subjects, measured_along), exploration, limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: temporary.write_bytes(text.encode()))
    return path


def _measure(subjects: Sequence[Subject], track: Track, say: Progress) -> dict[str, Report]:
    reports = {}
    for subject in subjects:
        places = "angles" if track.kind == "rotation" else "factors"
        say(f"measuring {subject.name} at {len(track.values)} {places}")
        reports[subject.name] = measure(
            subject.model,
            subject.images,
            track.group,
            subject.layers,
            subject.feature_groups,
            labels=subject.labels,
        )
    return reports


def _side_by_side(subjects: Sequence[Subject]) -> list[Subject]:
    """The runs with as many images as all have, after a check that these are the same."""
    first, n = subjects[0], min(len(subject.images) for subject in subjects)
    for other in subjects[1:]:
        if first.images.shape[1:] != other.images.shape[1:] or not torch.equal(
            first.images[:n], other.images[:n]
        ):
            raise ValueError(
                f"the runs were tested on different images, and cannot be shown side by side: "
                f"{first.folder} on {data_of(first.record)}, {other.folder} on {data_of(other.record)}; "
                f"write a report for each"
            )
    return [
        replace(
            subject, images=subject.images[:n], labels=None if subject.labels is None else subject.labels[:n]
        )
        for subject in subjects
    ]


def _examine(subject: Subject) -> Examined:
    from ...geometry.doctor import doctor

    channels, height, width = subject.images.shape[1:]
    try:
        return Examined(doctor(subject.model, (channels, height, width)))
    except ValueError as error:  # a model that it cannot follow: the page says so
        return Examined(None, str(error))


def _figures(
    subjects: Sequence[Subject], measured: Sequence[tuple[Track, Mapping[str, Report]]]
) -> list[Figure]:
    """Every plot that these runs allow; ``measured`` are their reports along each track."""
    from ..plots.layers import plot_angles, plot_costs, plot_errors, plot_factors, plot_training

    count = f"the first {len(subjects[0].images):,} test images"
    drawn = []
    for track, reports in measured:
        turning, others = track.kind == "rotation", len(track.values) - 1
        moves = f"{others} rotations" if turning else f"{others} scalings"
        caption = f"Relative error over {moves} of {count}; 0 is equivariant, about 2 is unrelated."
        drawn.append((f"Error in each layer, over {moves}", caption, plot_errors(reports)))
        if turning:
            caption = f"Measured on {count}, every {track.values[1]:g}°."
            drawn.append(("Error and accuracy at each angle", caption, plot_angles(reports)))
        else:
            caption = f"Measured on {count}, from ×{track.values[0]:.3g} to ×{track.values[-1]:.3g}."
            drawn.append(("Error and accuracy at each factor", caption, plot_factors(reports)))
    folders = {s.name: s.folder for s in subjects if (s.folder / "metrics.jsonl").exists()}
    if folders:
        drawn.append(("Training", "Loss, accuracy and each layer's term, by epoch.", plot_training(folders)))
    if len(subjects) > 1:
        rows = summarise([subject.record for subject in subjects])
        caption = "Test accuracy against multiply-accumulates for one image."
        drawn.append(("Accuracy and cost", caption, plot_costs(rows)))
    return [
        Figure(title, caption, as_svg(figure, f"figure{i}-"))
        for i, (title, caption, figure) in enumerate(drawn, 1)
    ]


def _needed() -> None:
    """Said before the work begins."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'a report needs {error.name}: pip install "ien[plots]"', name=error.name
        ) from error


def _ignore(text: str) -> None:
    pass
