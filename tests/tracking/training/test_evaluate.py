"""Runs of trackers: resumed to the bit, tested, recorded and loaded."""

import io
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import ien
from ien.tracking import Tracker, score
from ien.tracking.by_angle import overlap_by_angle
from ien.tracking.data import sets
from ien.tracking.data.boxes import rotated_corners
from ien.tracking.data.clip import Clip
from ien.tracking.results import Result, read_result
from ien.tracking.siamfc_network import SiamFC
from ien.tracking.training import evaluate
from ien.tracking.training.evaluate import search_crops, track_tests, update_cost
from ien.tracking.training.pairs import load_batches, make_pairs
from ien.tracking.training.task import TRACK_TARGETS
from ien.training import ALONE, Stopped, checkpoint, loop, run, run_folder
from ien.training.loop import take_step, train
from tests.helpers import toy, toy_clips
from tests.helpers.blob import Pixels
from tests.helpers.configs import with_values

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def small_data() -> Iterator[None]:
    """The toy's clips by the name of the generated ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sets, "load_clips", lambda *arguments: toy_clips.clips())
        yield


@pytest.fixture(scope="module")
def finished(small_data, tmp_path_factory) -> tuple[Path, str]:
    """A run folder, and what was printed."""
    folder, text = tmp_path_factory.mktemp("tracker") / "run", io.StringIO()
    run(folder, toy_clips.config(), console=Console(file=text, width=200))
    return folder, text.getvalue()


# --- training


def test_stopped_and_resumed_a_run_ends_as_if_never_stopped(tmp_path, finished, monkeypatch) -> None:
    calls = itertools.count(1)

    def step(*arguments) -> torch.Tensor:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(*arguments)

    config = toy_clips.config(workers=1)  # who decodes changes nothing
    with monkeypatch.context() as patch:
        patch.setattr(loop, "take_step", step)
        with pytest.raises(Stopped):
            train(tmp_path, TRACK_TARGETS.prepare(config, toy_clips.clips(), ALONE))
    state = checkpoint.load_checkpoint(tmp_path)
    assert state is not None and (state["epoch"], state["step"]) == (1, 1)
    network, *_ = train(tmp_path, TRACK_TARGETS.prepare(config, toy_clips.clips(), ALONE))
    weights = load_file(finished[0] / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in network.state_dict().items())
    assert (tmp_path / "metrics.jsonl").read_bytes() == (finished[0] / "metrics.jsonl").read_bytes()


def killed(folder: Path) -> None:
    """Hold the folder, let a worker make pairs, and die."""
    config = toy_clips.config(workers=1)
    with run_folder.lock(folder):
        batches = load_batches(make_pairs(config, toy_clips.clips().train, ALONE), config, 0, 0)
        next(batches)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere workers notice after seconds")
def test_workers_of_a_killed_run_do_not_hold_its_folder(tmp_path) -> None:
    assert toy.finish(toy.start(killed, tmp_path)) == -signal.SIGKILL
    for _ in range(20):  # two seconds, of which a moment is needed; torch takes five
        try:
            with run_folder.lock(tmp_path):
                return
        except ValueError:
            time.sleep(0.1)
    pytest.fail("the folder was still held after two seconds")


def test_metrics_and_lines_speak_of_pairs(finished) -> None:
    folder, text = finished
    lines = run_folder.read_metrics(folder)
    assert [line["learning_rate"] for line in lines] == [1e-2, 5e-3]
    assert list(lines[0]["terms"]) == [f"conv{i}" for i in range(1, 6)]
    assert all(line["train_accuracy"] * 7 in range(8) for line in lines)
    assert "epoch 2/2 step 3/3" in text and "pairs/s" in text
    assert "testing on 2 sequences, plain and rotated" in text
    assert text.count("tracks rot-clips synthetic-") == text.count("untrained clips synthetic-") == 2


# --- the record


def test_a_record_has_what_tables_and_plots_need(finished) -> None:
    record = json.loads((finished[0] / "result.json").read_text())
    assert record["accuracy"] is None and record["accuracy_with_copies"] is None
    assert {"config", "data", "versions", "machine", "commit", "seconds", "finished"} <= set(record)
    assert record["data"] | {"train": 3, "test": 2, "tested_on": "test"} == record["data"]
    assert record["parameters"] == record["trained_parameters"] and record["images_per_second"] > 0
    assert list(record["layers"]) == [f"conv{i}" for i in range(1, 6)]
    assert set(record["layers"]["conv5"]["per_element"]) == {"90°", "180°", "270°"}
    tracking = record["tracking"]
    assert list(tracking) == ["clips", "rot-clips", "still", "untrained"]
    for name in ("clips", "rot-clips"):
        result = tracking[name]
        for number in ("precision_auc", "normalised_precision", "centre_error", "orientation_error", "fps"):
            assert np.isfinite(result[number])
        assert (len(result["success_curve"]), len(result["precision_curve"])) == (21, 51)
        for one in result["sequences"].values():
            assert set(one) == {"success", "precision", "overlap", "frames"} and one["frames"] == 4
        for baseline in ("still", "untrained"):
            assert set(tracking[baseline][name]) == {"success", "precision"}
    assert tracking["clips"]["by_angle"] is tracking["clips"]["by_orientation"] is None


# --- the record


def test_scores_are_those_of_the_boxes_that_are_kept(finished) -> None:
    tracking = json.loads((finished[0] / "result.json").read_text())["tracking"]
    for name, clips in toy_clips.clips().tests.items():
        predictions = [(read_result(finished[0] / "tracks" / name, clip.name).boxes, clip) for clip in clips]
        scores = [score(boxes, clip.boxes) for boxes, clip in predictions]
        assert abs(tracking[name]["success"] - np.mean([s.success for s in scores])) < 1e-12
        assert abs(tracking[name]["overlap"] - np.mean([s.mean_overlap for s in scores])) < 1e-12
        still = [score([clip.boxes[0]] * len(clip), clip.boxes) for clip in clips]
        assert abs(tracking["still"][name]["success"] - np.mean([s.success for s in still])) < 1e-12
    expected = overlap_by_angle(predictions)
    assert name == "rot-clips" and [one.degrees for one in expected.turned] == [0, 15]  # of 0, 6, 12, 18
    for name in ("by_angle", "by_orientation"):  # the same, as none goes once around
        np.testing.assert_allclose(tracking["rot-clips"][name], expected.turned, rtol=1e-12)


def test_hulls_are_scored_from_the_same_boxes_and_angles(finished) -> None:
    tracking = json.loads((finished[0] / "result.json").read_text())["tracking"]
    for name, clips in toy_clips.clips().tests.items():
        successes = []
        for clip in clips:
            result = read_result(finished[0] / "tracks" / name, clip.name)
            boxes = []
            for box, angle in zip(result.boxes, result.angles, strict=True):
                corners = rotated_corners(box, angle)
                low, high = corners.min(0), corners.max(0)
                boxes.append([*(low + 0.5), *(high - low)])  # from borders to the centre of the first pixel
            successes.append(score(boxes, clip.boxes).success)
        assert abs(tracking[name]["success_hull"] - np.mean(successes)) < 1e-9
        assert abs(tracking[name]["precision_hull"] - tracking[name]["precision"]) < 1e-12


def test_the_angle_error_on_target_leaves_out_lost_frames_and_the_first() -> None:
    angles = np.array([0.0, 90, 180, 270, 350])
    boxes = np.array([[50.0, 50, 20, 20]] * 5)
    frames = [np.zeros((200, 200, 3), np.uint8)] * 5
    rotating = Clip("a", frames, boxes, angles=angles)
    found = boxes.copy()
    found[3, 0] += 21  # lost: its angle does not count
    given = np.array([77.0, 95, 170, 100, 5])
    lost = Clip("b", frames, boxes, angles=angles)  # has no frame on its target
    far = boxes + np.array([100, 0, 0, 0])
    results = {"a": Result(found, None, given), "b": Result(far, None, given)}
    error = evaluate._orientation_error_on_target
    assert error([rotating, lost], results) == pytest.approx((5 + 10 + 15) / 3)
    assert error([lost], results) is None
    still = Clip("a", frames, boxes)
    assert error([still], results) is None


@pytest.mark.parametrize(("templates", "expected"), [(4, 22.5), (8, 11.25)])
def test_a_perfect_tracker_has_the_angle_error_that_its_templates_leave(templates, expected) -> None:
    angles = np.arange(720.0)  # two turns
    boxes = np.array([[50.0, 50, 20, 20]] * 720)
    clip = Clip("a", [np.zeros((200, 200, 3), np.uint8)] * 720, boxes, angles=angles)
    step = 360 / templates
    nearest = np.round(angles / step) * step % 360
    found = evaluate._orientation_error_on_target([clip], {"a": Result(boxes, None, nearest)})
    assert found == pytest.approx(expected, abs=0.05)


def test_a_tracker_that_tries_one_angle_has_no_hull(tmp_path) -> None:
    config = toy_clips.config(feature_groups="1", beta=0.0, augment=False, epochs=1, pairs=2, batch_size=2)
    record = run(tmp_path / "run", with_values(config, test_images=1), console=Console(file=io.StringIO()))
    assert not any("hull" in field for test in record["tracking"].values() for field in test)


def test_boxes_of_the_same_weights_are_not_tracked_again(tmp_path, finished, monkeypatch) -> None:
    model, calls = ien.load(finished[0]), []
    tests = {"clips": toy_clips.clips(0, 2).tests["clips"]}
    track = evaluate.track
    monkeypatch.setattr(evaluate, "track", lambda *a: calls.append(a[1].name) or track(*a))

    def tracked() -> dict[str, Any]:
        calls.clear()
        return track_tests(tmp_path / "tracks", Tracker(model, 4), tests, print)["clips"]

    before = tracked()
    names = list(before)
    assert calls == names
    again = tracked()
    assert not calls and list(again) == names
    for name, result in again.items():
        assert all((a == b).all() for a, b in zip(result, before[name], strict=True))
    (tmp_path / "tracks/clips" / f"{names[1]}.txt").write_text("1,1,9,9\n")  # cut short
    tracked()
    assert calls == names[1:]
    model.conv5[0].bias.data.add_(1)
    tracked()
    assert calls == names


def test_an_update_costs_what_its_convolutions_cost() -> None:
    tracker = Tracker(ien.models.create("siamfc", width=1 / 16), rotations=4)
    channels, sizes = [3, 6, 16, 24, 24, 2], [123, 57, 53, 51, 49]  # of the search; pools between
    kernels, halves = [11, 5, 3, 3, 3], [1, 2, 1, 2, 2]
    network = 0
    for i, (kernel, size, groups) in enumerate(zip(kernels, sizes, halves, strict=True)):
        network += channels[i] * channels[i + 1] * kernel**2 * size**2 // groups
    correlation = 4 * 3 * 2 * 17**2 * 33**2
    assert update_cost(tracker)["macs"] == 3 * network + correlation


def test_crops_are_what_a_perfect_tracker_sees() -> None:
    seen, model, clips = [], Pixels(), toy_clips.clips().tests["clips"]
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    crops, tracker = search_crops(clips), Tracker(model)
    assert crops.shape == (8, 3, 255, 255)  # all frames, as there are few
    for k in (0, 3, 6):
        clip, frame = clips[k // 4], k % 4
        tracker.init(clip.frame(frame), clip.boxes[frame])
        tracker.update(clip.frame(frame))
        assert torch.equal(seen[-1][1], crops[k])  # of three sizes that of now


def test_the_steerable_tracker_is_exported_and_exact(tmp_path) -> None:
    config = toy_clips.config(model="re-siamfc", beta=0.0, augment=False, epochs=1, pairs=2, batch_size=2)
    record = run(tmp_path / "run", with_values(config, test_images=1), console=Console(file=io.StringIO()))
    assert type(ien.load(tmp_path / "run")) is SiamFC
    assert record["trained_parameters"] < record["parameters"]
    assert max(layer["relative"] for layer in record["layers"].values()) < 1e-6
