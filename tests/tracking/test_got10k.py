"""The GOT-10k toolkit: its own experiment runs a tracker of ours and scores it as we do."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.tracking import score, summarise
from ien.tracking.got10k import as_got10k
from ien.tracking.results import read_result

Image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")


class Follows:
    """Moves its box by a pixel to the right and half a pixel down a frame, and notes what it was given."""

    broken: Any = None

    def __init__(self) -> None:
        self.images: list[np.ndarray] = []

    def init(self, image: np.ndarray, box: np.ndarray) -> None:
        self.images.append(image)
        self.first = self.box = box

    def update(self, image: np.ndarray) -> tuple[Any, float, float]:
        self.images.append(image)
        self.box = self.box + np.array([1, 0.5, 0, 0])
        return self.box if self.broken is None else self.broken, 0.9, 0.0


@pytest.fixture
def stand_in(monkeypatch) -> None:
    """A package with the one class that is needed, for where the real one is not installed."""

    class Tracker:
        def __init__(self, name, is_deterministic=False) -> None:
            self.name, self.is_deterministic = name, is_deterministic

    trackers = types.ModuleType("got10k.trackers")
    trackers.Tracker = Tracker
    monkeypatch.setitem(sys.modules, "got10k", types.ModuleType("got10k"))
    monkeypatch.setitem(sys.modules, "got10k.trackers", trackers)


@pytest.mark.usefixtures("stand_in")
def test_boxes_are_converted_both_ways_and_images_are_rgb_arrays() -> None:
    ours = Follows()
    theirs = as_got10k(ours, "ours")
    assert theirs.name == "ours" and theirs.is_deterministic
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    theirs.init(Image.fromarray(pixels), np.array([1, 1, 4, 5]))
    assert ours.first.tolist() == [0, 0, 4, 5]
    assert theirs.update(Image.fromarray(pixels[..., 0])).tolist() == [2, 1.5, 4, 5]
    coloured, grey = ours.images
    assert np.array_equal(coloured, pixels) and coloured.dtype == np.uint8
    assert np.array_equal(grey, np.repeat(pixels[..., :1], 3, axis=2)) and grey.flags.writeable
    for ours.broken in ([1, 2, np.nan, 4], [[1, 2, 3, 4]], [1, 2, 3]):
        with pytest.raises(ValueError, match="ours"):
            theirs.update(Image.fromarray(pixels))


def test_without_the_toolkit_the_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "got10k", None)
    monkeypatch.delitem(sys.modules, "got10k.trackers", raising=False)
    with pytest.raises(ModuleNotFoundError, match="needs the got10k package: pip install got10k") as error:
        as_got10k(Follows(), "ours")
    assert error.value.name == "got10k"


class Sequences:
    """What the toolkit's experiment asks of a data set: pictures and boxes counted from 1."""

    seq_names = ("s0", "s1")

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(1)
        self.files, self.truth = [], []
        for name, frames in zip(self.seq_names, (12, 7), strict=True):
            (folder / name).mkdir()
            paths = [folder / name / f"{i:04d}.png" for i in range(frames)]
            for path in paths:
                Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
            moves = np.cumsum(rng.integers(-1, 3, (frames, 2)), axis=0)
            self.files.append([str(path) for path in paths])
            self.truth.append(np.column_stack([moves + 3.0, np.full((frames, 2), (9, 6))]))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[list[str], np.ndarray]:
        if i >= len(self):
            raise IndexError(i)
        return self.files[i], self.truth[i].copy()


@pytest.mark.filterwarnings("ignore")  # the toolkit is old
def test_the_toolkits_experiment_runs_and_scores_it_as_we_do(tmp_path, monkeypatch) -> None:
    pytest.importorskip("got10k", reason="pip install got10k to run inside it")
    monkeypatch.setenv("MPLBACKEND", "agg")
    from got10k.experiments import ExperimentOTB
    from got10k.trackers import Tracker

    experiment = ExperimentOTB.__new__(ExperimentOTB)  # its own __init__ would download OTB
    experiment.dataset = Sequences(tmp_path)
    experiment.nbins_iou, experiment.nbins_ce = 21, 51
    experiment.result_dir, experiment.report_dir = str(tmp_path / "results"), str(tmp_path / "reports")
    monkeypatch.setattr(experiment, "plot_curves", lambda names: None, raising=False)
    theirs = as_got10k(Follows(), "ours")
    assert isinstance(theirs, Tracker)
    experiment.run(theirs)
    report = experiment.report(["ours"])["ours"]
    scores = {}
    for name, truth in zip(Sequences.seq_names, experiment.dataset.truth, strict=True):
        boxes, seconds, _ = read_result(tmp_path / "results" / "ours", name)
        assert boxes[3].tolist() == (truth[0] + (2, 0.5, 0, 0)).tolist()  # from 1 to 0, and three moves
        scores[name] = score(boxes, truth - (1, 1, 0, 0), seconds=seconds)
        theirs_of_it = report["seq_wise"][name]
        assert np.array_equal(scores[name].success_curve, theirs_of_it["success_curve"])
        assert np.array_equal(scores[name].precision_curve, theirs_of_it["precision_curve"])
        assert scores[name].success == theirs_of_it["success_score"]
        assert scores[name].fps <= theirs_of_it["speed_fps"]  # the mean of 1 / seconds is never less
    overall, ours = report["overall"], summarise(scores)
    assert abs(ours.success - overall["success_score"]) < 1e-15
    assert abs(ours.precision - overall["precision_score"]) < 1e-15
    assert 0.1 < ours.success < 20 / 21
