"""Trackers refuse what they cannot use, and say what they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ien import rotation
from ien.tracking.settings import Settings, settings_for
from ien.tracking.tracker import Tracker
from tests.helpers.blob import Net, Pixels, box, frame

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ((500, 10, 20, 20), "outside of the frame of 401×401"),
        ((-30, 10, 30, 20), "outside"),
        ((10, 401, 20, 20), "outside"),
        ((10, 10, 0, 20), "some area"),
        ((10, 10, 20, 0), "some area"),
        ((10, 10, -5, 20), "negative"),
        ((np.nan, 10, 20, 20), "NaN"),
        ((10, 10, 20, np.inf), "infinite"),
        ((10, 10, 20), "x, y, w, h"),
        ([(10, 10, 20, 20)], "one box"),
        ("10,10,20,20", "x, y, w, h"),
        ((0, 0, 900, 20), "twice"),
    ],
)
def test_boxes_that_hold_no_target_are_refused(where: Any, message: str) -> None:
    tracker = Tracker(Pixels())
    tracker.init(frame(), box())
    with pytest.raises(ValueError, match=message):
        tracker.init(frame(), where)
    with pytest.raises(RuntimeError, match="init"):  # the target before is not taken for this one
        tracker.update(frame())


def test_update_needs_init() -> None:
    with pytest.raises(RuntimeError, match=r"init\(image, box\)"):
        Tracker(Pixels()).update(frame())


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (frame(size=(401, 399)), "399×401 pixels came after a first one of 401×401"),
        (frame().astype(np.float32), "float32"),
        (frame()[..., 0], "grey"),
        (np.dstack([frame(), frame()[..., :1]]), "four channels"),
        (None, "NoneType"),
    ],
)
def test_frames_of_another_kind_are_refused_and_the_target_is_kept(image: Any, message: str) -> None:
    tracker = Tracker(Pixels())
    tracker.init(frame(), box())
    with pytest.raises(ValueError, match=message):
        tracker.update(image)
    assert np.isfinite(tracker.update(frame()).box).all()


def test_a_box_that_the_border_cuts_is_a_target() -> None:
    tracker = Tracker(Pixels(), rotations=4)
    tracker.init(frame((2, 398)), box((2, 398)))
    found = tracker.update(frame((2, 398)))
    assert np.abs(found.box - box((2, 398))).max() < 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale_stepp": 1.1}, "scale_step"),
        ({"scales": 2}, "odd"),
        ({"scales": 3.0}, "whole"),
        ({"scales": 0}, "1 or more"),
        ({"window": 1.5}, "0 to 1"),
        ({"window": float("nan")}, "0 to 1"),
        ({"scale_step": 1.0}, "above 1"),
        ({"scale_penalty": "much"}, "0 to 1"),
        ({"exemplar": 255}, "larger than exemplar"),
        ({"search": 257}, "multiple of 8"),
        ({"rotations": 0}, "1 or more"),
        ({"rotations": 2.5}, "1 or more"),
        ({"max_turn": 90}, "rotations"),
        ({"rotations": 8, "max_turn": 30}, "45°"),
        ({"rotations": 8, "max_turn": float("nan")}, "45°"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tracker(Pixels(), **settings)


def test_settings_start_from_those_of_the_backbone() -> None:
    assert settings_for(None, {}) == settings_for("own", {}) == Settings()
    assert settings_for("alexnet-v1", {"window": 0.3}).scale_step == 1.0375
    assert Tracker(Pixels(), window=0).settings == Settings(window=0)


def test_a_model_without_a_stride_is_refused() -> None:
    with pytest.raises(ValueError, match=r"siamfc.*Identity.stride is None"):
        Tracker(nn.Identity())


def test_a_model_whose_stride_is_another_is_found_out() -> None:
    model = Pixels()
    model.stride = 8
    tracker = Tracker(model)
    tracker.init(frame(), box())
    with pytest.raises(ValueError, match="should be 17×17; it is 33×33"):
        tracker.update(frame())


def test_damaged_weights_are_an_error_and_no_nan_box() -> None:
    net = Net()
    tracker = Tracker(net)
    tracker.init(frame(), box())
    with torch.no_grad():
        net.layers[0].weight[0, 0, 0, 0] = float("nan")  # type: ignore[index, operator, union-attr]
    for use in (lambda: tracker.update(frame()), lambda: tracker.init(frame(), box())):
        with pytest.raises(ValueError, match="not finite"):
            use()


def test_finite_features_whose_correlation_overflows_are_an_error_and_no_nan_score() -> None:
    class Huge(Pixels):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1e25 * super().forward(x)

    tracker = Tracker(Huge(), rotations=4)
    tracker.init(frame(), box())
    with pytest.raises(ValueError, match="not finite"):
        tracker.update(frame())


def test_networks_run_without_gradients_and_what_is_cached_does_not_spoil_those_of_others() -> None:
    modes = []

    class Noting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.append((torch.is_inference_mode_enabled(), self.training))
            return super().forward(x)

    tracker = Tracker(Noting(), rotations=3, template_rate=0.1)
    tracker.init(frame(), box())
    tracker.update(frame())
    assert modes == [(True, False)] * 3
    side = 127 + 2 * 28  # of the picture that the tracker turned
    weight = torch.ones(1, requires_grad=True)
    rotation(3).act(weight * torch.rand(2, 3, side, side), torch.tensor([1, 2])).sum().backward()
    assert weight.grad is not None
