"""``ien export`` as a user runs it: one file, its card and a table, or one line and nothing written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ien
import ien.data
from ien.cli.model_file import build_model
from tests.helpers import toy
from tests.helpers.exports import run_onnx
from tests.helpers.shell import error_of, invoke

Image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")
pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
pytestmark = pytest.mark.usefixtures("elsewhere", "toy_data", "one_thread")

CODE = """
from torch import nn

class Branch(nn.Module):
    def forward(self, x):
        return x if x.mean() > 0 else -x

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

def branching():
    return nn.Sequential(nn.Conv2d(3, 8, 3), Branch())
"""

DETECTOR = """
import torch
from torch import nn

class Brightest(nn.Module):
    # the brightest pixel as a box: equivariant, and not invariant
    def forward(self, x):
        size = x.shape[-1]
        place = x.mean(1).flatten(1).argmax(1)
        row, column = place // size, place % size
        boxes = torch.stack([column, row, column + 1, row + 1], 1).float()
        return {"boxes": boxes, "scores": x.mean((2, 3))}

def build():
    return Brightest()
"""


@pytest.fixture
def photos(elsewhere):
    """net.py, and nine images of 12×12 in photos."""
    Path("net.py").write_text(CODE)
    Path("photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(9):
        Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(f"photos/{i}.png")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished toy run, not to be changed."""
    folder = tmp_path_factory.mktemp("export") / "ien-r4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        toy.run_in(folder, epochs=1, cycle_epochs=1)
    return folder


def files() -> set[str]:
    made_before = (".png", ".py", ".pyc")
    return {str(path) for path in Path().rglob("*") if path.is_file() and path.suffix not in made_before}


def test_a_run_becomes_a_file_with_its_accuracy_and_a_card(run) -> None:
    done = invoke("export", run, "-o", "out/net.onnx", "--licence", "mit")
    record = json.loads((run / "result.json").read_text())
    assert f"right {record['accuracy']:.1%}" in " ".join(done.output.split())
    assert "40 images under rot4, run by onnxruntime" in done.output
    assert done.output.endswith("model card: out/net.onnx.md\n")
    assert files() == {"out/net.onnx", "out/net.onnx.md"}
    x = toy.dataset().test_x[:5].float() / 255
    np.testing.assert_allclose(run_onnx(Path("out/net.onnx"), x), ien.load(run)(x).detach(), atol=1e-4)
    card = Path("out/net.onnx.md").read_text()
    assert "license: mit\n" in card and "## Settings" in card and "onnxruntime.InferenceSession" in card
    assert "| largest difference |" in card and card.index("## The file") < card.index("## Data")


def test_a_run_becomes_one_file_that_loads_without_its_folder(run, tmp_path) -> None:
    moved = Path(shutil.copytree(run, "copy"))
    invoke("export", moved / "config.json", "-o", "net.safetensors", "--quiet")  # a file of the run will do
    shutil.rmtree(moved)
    x = torch.rand(2, 1, 28, 28)
    assert torch.equal(ien.load("net.safetensors")(x), ien.load(run)(x))


def test_int8_is_calibrated_with_other_images_than_those_of_the_table(run) -> None:
    content = json.loads(invoke("export", run, "-o", "net.onnx", "--int8", "--json").stdout)
    assert content["num_images"] == 20  # half of 40: the others calibrate
    assert content["calibrated_on"] == 20
    assert "int8 was calibrated on 20 other images" in Path("net.onnx.md").read_text()
    int8 = content["versions"]["int8"]
    labels = toy.dataset().test_y[:20].numpy()
    answers = run_onnx(Path("net.onnx"), toy.dataset().test_x[:20].float() / 255).argmax(1)
    assert int8["accuracy"] == pytest.approx((answers == labels).mean())
    assert content["versions"]["onnxruntime"]["difference"] < 1e-4 < int8["difference"]
    assert set(int8["errors"]) == {"90°", "180°", "270°"}


def test_a_model_from_code_is_exported_with_its_weights(photos) -> None:
    net = build_model("net.py:build")
    torch.save(net.state_dict(), "w.pth")
    options = ("--weights", "w.pth", "--group", "rot2", "-o", "net.pt2")
    done = invoke("export", "net.py:build", "--images", "photos", "--number", "4", *options)
    assert "error at 180°" in done.output and "error at 90°" not in done.output
    assert "4 images under rot2" in done.output
    x = torch.rand(3, 3, 12, 12)
    torch.testing.assert_close(torch.export.load("net.pt2").module()(x), net.eval()(x))
    assert "weights of w.pth" in Path("net.pt2.md").read_text()
    again = invoke("export", "net.py:build", "--size", "3x12x12", *options)  # its own card is replaced
    assert "no --images: checked on random numbers" in again.stderr and "8 images" in again.stdout


def test_the_card_of_a_model_from_code_says_what_it_was_checked_with_and_loads_it(photos) -> None:
    options = ("--size", "3x12x12", "-o", "net.safetensors")
    content = json.loads(invoke("export", "net.py:build", *options, "--json").stdout)
    card = Path("net.safetensors.md").read_text()
    for note in ("weights of net.py:build are random", "checked on random numbers"):
        assert note in card and any(note in each for each in content["notes"])
    assert "from net import build" in card
    loaded = ien.load("net.safetensors", build=lambda: build_model("net.py:build"))
    assert loaded(torch.rand(2, 3, 12, 12)).shape == (2, 8)


def test_a_detector_is_checked_by_the_kinds_of_its_outputs(photos) -> None:
    Path("boxes.py").write_text(DETECTOR)
    options = ("--size", "3x12x12", "-o", "net.safetensors", "--json")
    errors = {}
    for outputs in ((), ("--outputs", "boxes=boxes,scores=scores")):
        content = json.loads(invoke("export", "boxes.py:build", *options, *outputs).stdout)
        errors[outputs] = content["versions"]["model"]["errors"]["90°"]
    unnamed, named = errors.values()
    assert named < 1e-8 < 0.1 < unnamed
    told = invoke("export", "boxes.py:build", *options, "--outputs", "box", code=2).stderr
    assert "error: outputs must be one of 'scores'" in told


def test_mistakes_are_one_line_each_and_leave_nothing(photos, run) -> None:
    size = ("--size", "3x12x12")
    assert "ends in .onnx" in error_of("export", "net.py:build", *size, "-o", "net.h5")
    assert "say how large the images are" in error_of("export", "net.py:build", "-o", "net.onnx")
    assert "--int8 is calibrated with images" in error_of(
        "export", "net.py:build", *size, "--int8", "-o", "a.onnx"
    )
    assert "has no 'bild'; it has" in error_of("export", "net.py:bild", *size, "-o", "net.onnx")
    assert "there is no run folder nowhere" in error_of("export", "nowhere", "-o", "net.onnx")
    assert "is a run and has its own" in error_of("export", run, "--weights", "w.pth", "-o", "net.onnx")
    assert "--data is for a run" in error_of("export", "net.py:build", "--data", "d", "-o", "net.onnx")
    assert files() == set()


def test_a_layer_that_does_not_export_is_named_in_the_last_line(photos) -> None:
    done = invoke("export", "net.py:branching", "--size", "3x12x12", "-o", "net.pt2", code=2)
    *notes, last, _ = done.stderr.split("\n")
    assert len(notes) == 2 and last.startswith("error: layer '1' (Branch) does not export (")
    assert files() == set()


def test_notes_of_the_user_are_not_replaced_by_the_card(photos) -> None:
    Path("net.pt2.md").write_text("# Mine\n")
    assert "net.pt2.md would be replaced" in error_of(
        "export", "net.py:build", "--size", "3x12x12", "-o", "net.pt2"
    )
    assert files() == {"net.pt2.md"} and Path("net.pt2.md").read_text() == "# Mine\n"


def test_a_run_whose_data_are_elsewhere_is_checked_with_other_images(run, photos, monkeypatch) -> None:
    def missing(*arguments, **options):
        raise FileNotFoundError("there is no data folder")

    monkeypatch.setitem(ien.data.DATASETS, "toy", ien.data.Loader(missing, missing))
    assert "there is no data folder; or check with other images, --images DIR" in error_of(
        "export", run, "-o", "net.pt2"
    )
    done = invoke("export", run, "-o", "net.safetensors", "--images", "photos", "--size", "1x28x28")
    assert "9 images under rot4" in done.output and "right" not in done.output
