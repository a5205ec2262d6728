"""A tracker in onnxruntime finds what the one in torch finds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.tracking import track
from ien.tracking.data.synthetic import synthetic
from ien.tracking.demo import tracker_of
from ien.tracking.exported import exported_tracker
from ien.training.single_file import about_run
from tests.helpers.tracker_run import untrained_tracker

pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_exported_tracker_follows_as_the_network_does(tmp_path) -> None:
    run = untrained_tracker(tmp_path / "run", "4")
    path = tmp_path / "siamfc.onnx"
    pictures = torch.rand(2, 3, 127, 127)
    ien.export(ien.load(run), path, pictures, any_size=True, about=about_run(run))
    clip = synthetic(seed=4, frames=5, size=(96, 128))
    ours, theirs = exported_tracker(path), tracker_of(run)
    assert ours.rotations == theirs.rotations == 4 and ours.settings == theirs.settings
    found, expected = track(ours, clip), track(theirs, clip)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-3)
    np.testing.assert_allclose(found.angles, expected.angles)
    assert exported_tracker(path, templates=2).rotations == 2
    assert not list(ours.model.parameters())  # nothing of torch's network is left in it


def test_a_file_that_is_no_tracker_is_refused(tmp_path) -> None:
    path = tmp_path / "net.onnx"
    ien.export(nn.Conv2d(3, 4, 3), path, torch.rand(2, 3, 9, 9))
    with pytest.raises(ValueError, match=r"net\.onnx is no tracker: make one with ien export RUN"):
        exported_tracker(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        exported_tracker(Path("nowhere.onnx"))
