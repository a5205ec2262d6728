"""``ien track`` as a user runs it: what it writes and says, and how it ends when something is wrong."""

import csv
import importlib.util
import io
import re
import shutil
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest
from rich.console import Console

from ien.experiments import queue
from ien.tracking import Tracker, footage, score, track
from ien.tracking import demo as demo_module
from ien.tracking.data.boxes import hulls
from ien.tracking.data.clips import otb
from ien.tracking.data.rot_otb import rotated, write
from ien.tracking.data.synthetic import synthetic
from ien.tracking.demo import tracker_of
from ien.tracking.recording import record_with_table
from ien.tracking.training.config import TrackingConfig
from ien.tracking.video import write_video
from ien.training import Config, Stopped
from ien.training.network import build
from ien.training.run_folder import create, read_config, save_weights
from tests.helpers.configs import with_values
from tests.helpers.shell import error_of, invoke
from tests.helpers.tracker_run import DATA, untrained_tracker

pytest.importorskip("av", reason="videos need av: pip install 'ien[track]'")
Image = pytest.importorskip("PIL.Image", reason="frames need pillow: pip install 'ien[track]'")
pytestmark = pytest.mark.usefixtures("elsewhere", "one_thread")

FRAMES = 8
BOX = "40,30,24,20"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_tracker(tmp_path_factory.mktemp("runs") / "ien", "4")


@pytest.fixture(scope="module")
def clip():
    return synthetic(seed=4, frames=FRAMES, size=(96, 128))


@pytest.fixture(scope="module")
def video(clip, tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    write_video(path, footage(clip), 12.5)
    return path


@pytest.fixture(scope="module")
def sequence(clip, tmp_path_factory):
    """A sequence of OTB that turns, with its angles."""
    return write(rotated(clip, turns_per_second=1), tmp_path_factory.mktemp("otb"), suffix=".png")


def table(path):
    rows = list(csv.DictReader(Path(path).read_text().splitlines()))
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    return columns | {"box": np.stack([columns[name] for name in "xywh"], 1)}


def test_a_video_gives_a_video_and_the_trackers_boxes_as_a_table(video, run) -> None:
    done = invoke("track", video, "--run", run, "--box", BOX, "--out", "here/out.mp4", columns=300)
    shown, found = footage("here/out.mp4"), table("here/out.csv")
    assert shown.count == FRAMES and shown.fps == Fraction(25, 2)
    expected = track(tracker_of(run), footage(video), [40, 30, 24, 20])
    assert np.abs(found["box"] - expected.boxes).max() < 1e-3
    assert np.abs(found["score"] - expected.scores).max() < 1e-5
    assert found["angle"].tolist() == expected.angles.tolist()
    assert found["frame"].tolist() == list(range(FRAMES)) and (found["seconds"] > 0).all()
    first, second, third = done.stdout.splitlines()
    assert re.fullmatch(r"clip: 8 frames in \S+ s, \S+ fps; the tracker alone \S+ fps", first)
    assert re.fullmatch(r"video: here/out\.mp4, .+ \(.+\)", second)
    assert third.startswith("table: here/out.csv")


def test_files_are_named_after_the_source_or_as_given_and_a_start_is_a_frame(video, sequence, run) -> None:
    invoke("track", video, "--run", run, "--box", BOX, "--start", "3")
    assert table("tracks/clip.csv")["frame"].tolist() == [3, 4, 5, 6, 7]
    for found, plain in zip(footage("tracks/clip.mp4"), list(footage(video))[3:], strict=True):
        assert np.abs(found[:20, -30:].astype(int) - plain[:20, -30:]).mean() < 6
    files = ("-o", "x.mp4", "--csv", "other.csv")
    invoke("track", sequence / "img", "--run", run, "--box", BOX, "--fps", "12.5", *files)
    assert footage("x.mp4").fps == Fraction(25, 2) and footage("x.mp4").count == FRAMES
    assert len(table("other.csv")["frame"]) == FRAMES


@pytest.mark.parametrize("start", [0, 2])
def test_a_sequence_of_otb_starts_at_its_true_box_and_has_scores(sequence, run, start) -> None:
    done = invoke("track", sequence, "--run", run, "--start", str(start), "-o", "x.mp4", columns=400)
    (truth,), found = otb(sequence.parent), table("x.csv")
    true, angles = truth.boxes[start:], truth.angles[start:] - truth.angles[start]
    assert np.abs(found["box"][0] - true[0]).max() < 1e-3
    expected = score(found["box"], true, found["angle"], angles)
    scores, still = done.stdout.splitlines()[-2:]
    assert scores.startswith(f"scores: {expected}, ") and scores.endswith(" fps") and "within 45°" in scores
    never = score(np.repeat(true[:1], len(true), 0), true)
    text = f"success {never.success:.3f}, precision {never.precision:.3f}"
    assert still == f"a box that never moves: {text}"
    own = invoke("track", sequence, "--run", run, "--box", BOX, "-o", "y.mp4").stdout
    assert "scores" not in own  # another target may be meant


def test_unknown_boxes_do_not_count_and_of_two_targets_one_is_named(sequence, run) -> None:
    copy = shutil.copytree(sequence, Path("otb", "Part"))
    truth = copy / "groundtruth_rect.txt"
    text = truth.read_text()
    lines = text.splitlines()
    lines[3], lines[4] = "NaN,NaN,NaN,NaN", "5,5,0,0"
    truth.write_text("\n".join(lines))
    assert "scores: success" in invoke("track", copy, "--run", run, columns=400).stdout
    assert "no true box in frame 3" in error_of("track", copy, "--run", run, "--start", "3")
    truth.rename(copy / "groundtruth_rect.1.txt")
    other = "".join(f"{line.split(',')[0]},30,22,20\n" for line in text.splitlines())
    (copy / "groundtruth_rect.2.txt").write_text(other)
    message = error_of("track", copy, "--run", run)
    assert "2 targets: name one of them, otb/Part-1 or otb/Part-2" in message
    invoke("track", "otb/Part-2", "--run", run)
    assert table("tracks/Part-2.csv")["box"][0][1:].tolist() == [29, 22, 20]


def test_templates_are_those_of_the_group_and_one_for_plain_siamfc(run, video, tmp_path) -> None:
    plain = untrained_tracker(tmp_path / "plain", "1")
    assert tracker_of(run).rotations == 4 and tracker_of(plain).rotations == 1
    invoke("track", video, "--run", plain, "--box", BOX)
    assert not table("tracks/clip.csv")["angle"].any()
    invoke("track", video, "--run", run, "--box", BOX, "--templates", "8")
    expected = track(Tracker(tracker_of(run).model, 8), footage(video), [40, 30, 24, 20])
    assert table("tracks/clip.csv")["angle"].tolist() == expected.angles.tolist()


def test_a_hull_is_in_the_table_and_in_the_scores(run, sequence, monkeypatch) -> None:
    # an untrained network finds no angle: let it find 45° more in every frame
    monkeypatch.setattr(Tracker, "_best", lambda self, responses, last: ((last + 1) % 8, 1))
    written = f"tracks/{sequence.name}.csv"
    options = ("--run", run, "--templates", "8")
    said = {}
    tables = {}
    for shape in ("upright", "hull"):
        said[shape] = invoke("track", sequence, *options, "--box-shape", shape).stdout
        tables[shape] = table(written)
    upright, hull = tables["upright"], tables["hull"]
    assert hull["angle"].tolist() == upright["angle"].tolist() == [45 * k for k in range(FRAMES)]
    expected = hulls(upright["box"], upright["angle"])
    np.testing.assert_allclose(hull["box"], expected, atol=2e-3)  # three decimals are kept
    (clip,) = otb(sequence.parent)
    for shape, found in tables.items():
        assert f"success {score(found['box'], clip.boxes).success:.3f}" in said[shape]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("", "name a video, a folder of images or a sequence of OTB; or try --demo"),
        ("VIDEO", "--run RUN: ien run tracking/ien-siamfc --preset small trains one; ien track --demo"),
        ("VIDEO --run nowhere", "nowhere is not a run folder"),
        ("VIDEO --run RUN", "in frame 0 of VIDEO (128×96 pixels): --box x,y,w,h"),
        ("VIDEO --run RUN --box 1,2,3", "such as 40,25,60,80; got '1,2,3'"),
        ("VIDEO --run RUN --box 1,2,nan,4", "got '1,2,nan,4'"),
        ("VIDEO --run RUN --box 1,2,0,4", "w and h above 0"),
        ("VIDEO --run RUN --box 128,2,9,9", "128×96 pixels"),
        ("VIDEO --run RUN --box BOX --start 8", "start must be 0 to 7; got 8"),
        ("VIDEO --run RUN --box BOX --fps 5", "has its own frame rate"),
        ("VIDEO --run RUN --box BOX --out x.avi", "name it x.mp4"),
        ("VIDEO --run RUN --box BOX --out VIDEO", "would overwrite the video that is read"),
        ("VIDEO --run RUN --box BOX --csv x.txt", "the table is a csv file; got x.txt"),
        ("gone.mp4 --run RUN --box BOX", "there is no video or folder gone.mp4"),
        ("RUN --run RUN --box BOX", "holds no images"),
        ("SEQUENCE --run RUN --fps -1", "fps must be a number of frames"),
        ("VIDEO --demo", "--demo makes its own clip"),
        ("--demo --box-shape hull", "--demo makes its own clip"),
        ("VIDEO --run RUN --box BOX --box-shape hull --templates 1", "tries a single one: give rotations=4"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, fragment, video, run, sequence) -> None:
    places = {"VIDEO": str(video), "RUN": str(run), "SEQUENCE": str(sequence), "BOX": BOX}
    given = [places.get(argument, argument) for argument in arguments.split()]
    assert fragment.replace("VIDEO", str(video)) in error_of("track", *given)
    assert not [path for path in Path.cwd().rglob("*") if path.is_file()]


def test_a_run_of_a_classifier_is_refused_and_a_trackers_named(video, tmp_path) -> None:
    create(tmp_path / "digits", Config("rot-mnist/ien-r4", "smoke"), DATA)
    message = error_of("track", video, "--run", "digits", "--box", BOX)
    assert "digits is a run of rot-mnist/ien-r4" in message and "cnn6" in message
    untrained_tracker(tmp_path / "runs" / "tracking" / "row" / "smoke-seed1", "4")
    assert "--run runs/tracking/row/smoke-seed1 is one, and ien run" in error_of("track", video)


def test_frames_that_are_missing_or_damaged_are_told_in_one_line(video, sequence, run) -> None:
    whole = video.read_bytes()
    Path("cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    done = invoke("track", "cut.mp4", "--run", run, "--box", BOX)
    assert re.fullmatch(r"warning: cut\.mp4 gave \d of 8 frames: it ends early[^\n]*\n", done.stderr)
    assert 1 <= len(table("tracks/cut.csv")["frame"]) < FRAMES
    shutil.rmtree("tracks")
    images = Path(shutil.copytree(sequence / "img", "photos"))
    Image.new("RGB", (64, 64)).save(images / "0005.png")
    message = error_of("track", images, "--run", run, "--box", BOX)
    assert "frame 5: a frame of 64×64 pixels came after a first one" in message
    (images / "0005.png").write_bytes(b"none")
    assert "0005.png cannot be read as an image" in error_of("track", images, "--run", run, "--box", BOX)
    assert not [path for path in Path("tracks").rglob("*") if path.is_file()]


def test_ctrl_c_ends_with_130_and_leaves_no_half_video(video, run, monkeypatch) -> None:
    monkeypatch.setattr(Tracker, "update", Mock(side_effect=KeyboardInterrupt))
    done = invoke("track", video, "--run", run, "--box", BOX, code=130)
    assert done.stderr == "stopped; nothing was written\n" and not list(Path("tracks").iterdir())


def test_a_line_shows_frame_speed_score_and_angle_on_a_terminal(clip, run) -> None:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=120)
    record_with_table(tracker_of(run), footage(clip), clip.boxes[0], Path("a.mp4"), Path("a.csv"), console)
    plain = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", seen.getvalue())
    assert re.search(r"synthetic-4 .+ 8/8 \d+\.\d fps  score [01]\.\d\d  angle +\d+°", plain)


def test_the_demo_writes_video_table_and_strip_and_prints_three_scores(run, monkeypatch) -> None:
    trained = Path(shutil.copytree(run, "trained"))
    config = read_config(trained)
    save_weights(trained, build(with_values(config, seed=7)))  # others than it begins with
    monkeypatch.setattr(demo_module, "CLIP_FRAMES", FRAMES)
    text = invoke("track", "--demo", "--run", trained, "--out", "demo", columns=400).output
    written = sorted(path.name for path in Path("demo").iterdir())
    assert written == ["turning.csv", "turning.mp4", "turning.png"]
    clip = synthetic(demo_module.CLIP_SEED, FRAMES, distractors=2, alike=True, speed=1.5)
    found, before = table("demo/turning.csv"), track(Tracker(build(config), 4), clip)
    expected = {
        "the tracker": score(found["box"], clip.boxes, found["angle"], clip.angles),
        "its network, untrained": score(before.boxes, clip.boxes, before.angles, clip.angles),
        "a box that never moves": score(np.repeat(clip.boxes[:1], FRAMES, 0), clip.boxes),
    }
    rows = dict(re.findall(rf"^({'|'.join(expected)}) +(\S.*\S)$", text, flags=re.MULTILINE))
    assert list(rows) == list(expected)
    for name, one in expected.items():
        within = "–" if one.within_45 is None else f"{one.within_45:.0%}"
        numbers = [f"{value:.3f}" for value in (one.success, one.precision, one.mean_overlap)]
        assert rows[name].split() == [*numbers, within]
    assert rows["the tracker"] != rows["its network, untrained"]
    with Image.open("demo/turning.png") as strip:
        assert strip.size == (3 * 320 + 8, 2 * 240 + 4)
    assert footage("demo/turning.mp4").count == FRAMES


def test_the_demo_asks_for_what_it_needs_before_it_trains(monkeypatch) -> None:
    monkeypatch.setattr(queue, "run_all", lambda *arguments, **settings: pytest.fail("it trains"))
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "av" else there(name))
    assert "needs av: pip install" in error_of("track", "--demo")


def test_the_demo_trains_the_smallest_tracker_and_resumes_it(run, monkeypatch) -> None:
    plan = Mock(return_value=[TrackingConfig("tracking/ien-siamfc", "demo")])

    def run_all(configs, runs, results, console):
        if plan.call_count == 1:
            raise Stopped(runs)
        shutil.copytree(run, runs / "trained")

    monkeypatch.setattr(demo_module, "CLIP_FRAMES", 2)
    monkeypatch.setattr(queue, "plan", plan)
    monkeypatch.setattr(queue, "run_all", run_all)
    monkeypatch.setattr(queue, "run_name", lambda config: "trained")
    assert "the same command resumes" in invoke("track", "--demo", "-o", "demo", code=130).stderr
    invoke("track", "--demo", "-o", "demo")
    assert plan.call_args_list == [call(["tracking/ien-siamfc"], "demo", [1])] * 2
    assert Path("demo/turning.mp4").exists()


def test_an_onnx_file_tracks_in_place_of_a_run(run, video) -> None:
    pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
    invoke("export", run, "-o", "siamfc.onnx", "--size", "3x127x127", "--quiet")
    tables = []
    for tracker in (("--run", run), ("--onnx", "siamfc.onnx")):
        invoke("track", video, *tracker, "--box", BOX, "--out", "out.mp4")
        with open("out.csv") as file:
            rows = list(csv.DictReader(file))
        tables.append([[float(row[name]) for name in ("x", "y", "w", "h", "angle")] for row in rows])
    np.testing.assert_allclose(tables[0], tables[1], atol=1e-2)
    assert "--run and --onnx both name a tracker" in error_of(
        "track", video, "--run", run, "--onnx", "siamfc.onnx", "--box", BOX
    )
    assert "--demo makes its own clip" in error_of("track", "--demo", "--onnx", "siamfc.onnx")
