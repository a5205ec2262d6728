"""measure, doctor and report: on runs and on someone else's code, with good and with bad input."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ien
from ien.cli.model_file import build_model
from ien.report.opened import open_run
from tests.helpers import toy
from tests.helpers.shell import error_of, invoke

Image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")

pytestmark = pytest.mark.usefixtures("elsewhere", "toy_data")

CODE = """
import torch
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

def symmetric():
    net = build()
    for conv in (net[0], net[2]):
        k = conv.weight.data
        conv.weight.data = sum(t.rot90(n, (-2, -1)) for t in (k, k.flip(-1)) for n in range(4)) / 8
    return net

def compiled():
    return torch.compile(build(), backend="eager")

def conv():
    return nn.Conv2d(3, 4, 3)

def constant():
    net = nn.Sequential(conv())
    nn.init.zeros_(net[0].weight)
    return net

class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = build()

    def forward(self, x):
        return {"logits": self.net(x), "mean": x.mean()}

def strided():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
"""
ON = ("--images", "photos", "--group", "rot4")


@pytest.fixture
def photos(elsewhere):
    """net.py, and five images of 12×12 in photos."""
    Path("net.py").write_text(CODE)
    rng = np.random.default_rng(0)
    Path("photos/inner").mkdir(parents=True)
    for name in ("0", "1", "2", "inner/3", "inner/4"):
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{name}.png")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A finished toy run."""
    folder = tmp_path_factory.mktemp("look") / "ien-r4"
    assert toy.finish(toy.start(toy.train, folder)) == 0
    return folder


@pytest.mark.slow
def test_a_run_is_measured_as_its_record_says(run_folder) -> None:
    done = invoke("measure", run_folder, "--out", "saved")
    assert done.stdout.startswith("equivariance to rot4 over 40 images\n")
    saved = json.loads(Path("saved/report.json").read_text())
    record = json.loads((run_folder / "result.json").read_text())
    for name, layer in record["layers"].items():
        assert abs(saved["layers"][name]["relative"] / layer["relative"] - 1) < 1e-4
    assert saved["accuracy"]["identity"] == record["accuracy"]
    assert Path("saved/report.md").exists() and Path("saved/report.html").exists()


@pytest.mark.slow
def test_a_run_can_be_looked_at_on_other_images_groups_and_sizes(run_folder, photos) -> None:
    text = invoke("measure", run_folder, "--images", "photos", "--group", "flip", "--layers", "conv2").stdout
    assert text.startswith("equivariance to flip over 5 images\n") and "conv1" not in text
    assert "accuracy" not in text  # these have no labels
    assert "is a run and has its own" in error_of("measure", run_folder, "--weights", "w.pt")
    assert "--size rescales the images of --images" in error_of("measure", run_folder, "--size", "12")
    own = invoke("doctor", run_folder, "--strict").stdout
    assert own.startswith("quarter turns and flips at 28×28: exact")
    assert "at 29×29: not exact" in invoke("doctor", run_folder, "--size", "1x29x29").stdout


@pytest.mark.slow
def test_an_opened_run_has_its_network_and_its_test_set(run_folder) -> None:
    opened = open_run(run_folder, count=7)
    assert opened.name == "ien-r4 smoke seed 1" and opened.record.accuracy <= 1
    x = toy.dataset().test_x[:7].float() / 255
    assert torch.equal(opened.images, x) and torch.equal(opened.labels, toy.dataset().test_y[:7])
    with torch.no_grad():
        assert torch.equal(opened.model(x), ien.load(run_folder)(x))


def test_code_with_weights_is_measured_on_a_folder_of_images(photos) -> None:
    save_file(build_model("net.py:symmetric").state_dict(), "w.safetensors")
    options = ("--weights", "w.safetensors", "--feature-groups", "4", "--layers", "1,3", "--out", "saved")
    text = invoke("measure", "net.py:build", *ON, *options).stdout
    assert text.startswith("equivariance to rot4 over 5 images\n")
    layers = json.loads(Path("saved/report.json").read_text())["layers"]
    assert all(layers[name]["relative"] < 1e-10 for name in ("1", "3"))


def test_the_model_itself_is_named_as_the_table_names_it(photos) -> None:
    assert "the model itself" in invoke("measure", "net.py:conv", *ON).stdout
    options = ("--images", "photos", "--group", "C4", "--layers", "the model itself,", "--number", "3")
    named = invoke("measure", "net.py:conv", *options).stdout
    assert named.startswith("equivariance to rot4 over 3 images\n")
    assert named.splitlines()[2].startswith("the model itself  10×10 ")


def test_fail_above_is_a_gate_that_a_constant_layer_does_not_pass(photos) -> None:
    gate = (*ON, "--layers", "1,3", "--fail-above", "0.001", "--random-weights")
    invoke("measure", "net.py:symmetric", *gate)
    done = invoke("measure", "net.py:build", *gate, code=1)
    assert "\nabove 0.001, or constant: 1 " in done.stderr and ", 3 " in done.stderr
    done = invoke("measure", "net.py:constant", *ON, "--fail-above", "9", "--random-weights", code=1)
    assert "or constant: 0 0" in done.stderr and "maps are constant" in done.stdout


def test_random_weights_are_named_repeatable_and_no_gate(photos) -> None:
    first = invoke("measure", "net.py:build", *ON)
    assert "no --weights: weights of net.py:build are random (seed 0), not trained" in first.stderr
    assert invoke("measure", "net.py:build", *ON).stdout == first.stdout
    message = error_of("measure", "net.py:build", *ON, "--fail-above", "9")
    assert "the weights of net.py:build are random: give --weights FILE, or --random-weights" in message
    save_file(build_model("net.py:build").state_dict(), "w.safetensors")
    done = invoke("measure", "net.py:build", *ON, "--weights", "w.safetensors", "--fail-above", "9")
    assert "random" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("measure net.py:build --group rot4", "a model from code needs images: --images DIR"),
        ("measure net.py:build --images nowhere --group rot4", "there is no folder nowhere"),
        ("measure net.py:build --images one --group rot4", "at least two images"),
        ("measure net.py:build ON --number 2 --size 1x12x12", "the model fails on images 1×12×12"),
        ("measure net.py:build ON --size big", "write a size as 3x224x224"),
        ("measure net.py:build ON --size 3x12", "write a size as 3x224x224"),
        ("measure net.py:build ON --size 3x0x12", "write a size as 3x224x224"),
        ("measure net.py:build ON --size 99999", "at most 8192 pixels"),
        ("measure net.py:build ON --layers 6", "layer '6' returned a tensor of shape"),
        ("measure net.py:build ON --layers stage", "the model has no layer 'stage'"),
        ("measure net.py:build --images photos --group rott4", "'rott4'"),
        ("measure net.py:build ON --weights w.pt", "there is no file w.pt"),
        ("measure net.py:bild ON", "net.py has no 'bild'; it has build"),
        (
            "measure net.py ON",
            "name the function of net.py that makes the model",
        ),
        ("measure one", "one is not a run folder"),
        ("measure net.py:build ON --data here", "--data is for a run"),
        ("measure net.py:build ON --fail-above nan", "should be a number such as 0.05; got nan"),
        ("measure net.py:build ON --out net.py", "--out should name a folder; net.py is a file"),
        ("report net.py:build", "a model from code needs images: --images DIR"),
        ("report net.py:build net.py:conv --images photos", "write one for net.py:build alone"),
        ("report net.py:build --images photos --data here", "--data is for runs"),
        ("report net.py:build --images photos --size 3x12x16", "must be square; these are 12×16: scale them"),
        ("report net.py:build --images one", "the page needs at least two images"),
        ("report net.py:build --images photos --weights photos", "photos is a folder, not a file with"),
        ("report net.py:Several --images photos", "name the part to look at, such as --output logits, or"),
        ("report net.py:Several --images photos --output logit", "did you mean logits?"),
        (
            "report net.py:build --images photos -o page.pdf",
            "the page is HTML: name it page.html; got page.pdf",
        ),
        ("report one --weights w.pt", "--weights is for a model from code"),
        ("report one", "one is not a run folder"),
        ("report nowhere", "nowhere is not a run folder"),
        ("doctor net.py:build", "say how large the images are: --size 3x224x224"),
        ("doctor net.py:build --size 1x12x12", "the model fails on an input"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy(arguments, message, photos) -> None:
    Path("one").mkdir()
    Path("photos/0.png").rename("one/a.png")
    assert message in error_of(*arguments.replace("ON", " ".join(ON)).split())


def test_a_compiled_model_is_named_and_its_layers_have_their_own_names(photos) -> None:
    named = "net.py:compiled returns a compiled model: it is looked at as it was before torch.compile\n"
    done = invoke("measure", "net.py:compiled", *ON)
    assert done.stderr.startswith(named)
    assert done.stdout == invoke("measure", "net.py:build", *ON).stdout
    done = invoke("doctor", "net.py:compiled", "--size", "12")
    assert done.stderr == named and "_orig_mod" not in done.stdout


def test_doctor_names_the_operation_and_the_sizes(photos) -> None:
    text = invoke("doctor", "net.py:strided", "--size", "3x32x32").stdout
    assert "0: conv 3×3, stride 2, padding 1, on 32×32" in text and "31 below, 33 above" in text
    assert invoke("doctor", "net.py:strided", "--size", "32", "--strict", code=1).stdout == text
    assert "exact" in invoke("doctor", "net.py:strided", "--size", "33", "--strict").stdout


def test_every_command_takes_some_images_of_each_class(photos, monkeypatch) -> None:
    for k in range(8):
        folder = Path(f"classes/{'cat' if k < 4 else 'dog'}")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((12, 12, 3), k, dtype=np.uint8)).save(folder / f"{k}.png")

    class Seen(RuntimeError):
        """Carries the paths that a command would read."""

    def stop(paths: list[Path], *_: object, **__: object) -> None:
        raise Seen(" ".join(path.stem for path in paths))

    monkeypatch.setattr("ien.measuring.image_folder.image_batches", stop)
    some = ("net.py:build", "--images", "classes", "--number", "4")
    assert error_of("measure", *some) == "error: 0 2 4 6\n"
    assert error_of("report", *some) == "error: 0 2 4 6\n"
    assert error_of("export", *some, "-o", "net.safetensors") == "error: 0 2 4 6\n"
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
    # those of the table, then those to calibrate with
    assert error_of("export", *some, "-o", "net.onnx", "--int8") == "error: 0 2 4 6 1 3 5 7\n"


def test_the_page_of_a_model_from_code_says_what_it_is_of(photos) -> None:
    pytest.importorskip("matplotlib", reason='the page needs pip install "ien[plots]"')
    Path("photos/broken.png").write_text("no image")
    state = {f"module.{name}": tensor for name, tensor in build_model("net.py:build").state_dict().items()}
    torch.save({"state_dict": state}, "w.pt")
    options = ("--images", "photos", "--weights", "w.pt", "--layers", "1,3", "--output", "logits")
    wrapped = {f"net.{name.removeprefix('module.')}": tensor for name, tensor in state.items()}
    torch.save(wrapped, "wrapped.pt")
    done = invoke("report", "net.py:Several", *options[:3], "wrapped.pt", *options[6:], "-o", "page.html")
    assert done.stdout.startswith("wrote page.html (")
    assert done.stderr == "left out 1 of the images, which cannot be read: photos/broken.png\n"
    done = invoke("report", "net.py:build", *options[:6], "--group", "rot8", "-o", "page.html")
    said = "w.pt: weights from 'state_dict', without the prefix 'module.'"
    assert done.stderr.startswith(said)
    page = Path("page.html").read_text()
    assert said.replace("'", "&#39;") in page and "Equivariance to rot8 over 5 images" in page
    assert "5 of 6 in photos" in page and "left out 1 of the images" in page
