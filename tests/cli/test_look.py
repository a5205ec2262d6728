"""The commands that look at models: on runs and on a stranger's code, with good and with bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ien
from ien.report.opened import build_model, load_weights_into, open_run
from tests.helpers import toy
from tests.helpers.shell import error_of, invoke

Image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")

pytestmark = pytest.mark.usefixtures("elsewhere", "toy_data")

CODE = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

def symmetric():
    net = build()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            k = module.weight.data
            k = sum(t.rot90(n, (-2, -1)) for t in (k, k.flip(-1)) for n in range(4)) / 8
            module.weight.data = k
    return net

def number():
    return 3

def failing():
    raise LookupError("no such stage")

def exits():
    raise SystemExit(3)

def needs(width):
    return build()

READY = build()
"""


@pytest.fixture
def code() -> str:
    Path("net.py").write_text(CODE)
    return "net.py"


@pytest.fixture
def photos() -> Path:
    rng = np.random.default_rng(0)
    Path("photos/inner").mkdir(parents=True)
    for i in range(5):
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{'inner/' if i > 2 else ''}{i}.png")
    return Path("photos")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished toy run."""
    folder = tmp_path_factory.mktemp("look") / "ien-r4"
    assert toy.finish(toy.start(toy.train, folder)) == 0
    return folder


# --- runs


def test_a_run_is_measured_as_its_record_says(run_folder: Path) -> None:
    done = invoke("measure", run_folder, "--out", "saved")
    assert done.stdout.startswith("equivariance to rot4 over 40 images\n")
    saved = json.loads(Path("saved/report.json").read_text())
    record = json.loads((run_folder / "result.json").read_text())
    for name, layer in record["layers"].items():
        assert abs(saved["layers"][name]["relative"] / layer["relative"] - 1) < 1e-4
    assert saved["accuracy"]["identity"] == record["accuracy"]
    assert "run that has its own" in error_of("measure", run_folder, "--weights", "w.pt")
    assert Path("saved/report.md").exists() and Path("saved/report.html").exists()


def test_a_run_can_be_measured_on_other_images_and_groups(run_folder: Path, photos: Path) -> None:
    text = invoke("measure", run_folder, "--images", photos, "--group", "flip", "--layers", "conv2").stdout
    assert text.startswith("equivariance to flip over 5 images\n") and "conv1" not in text
    assert "accuracy" not in text  # these have no labels


def test_the_subject_of_a_run_is_its_network_and_its_test_set(run_folder: Path) -> None:
    subject = open_run(run_folder, count=7)
    assert subject.name == "ien-r4 smoke seed 1" and subject.record.accuracy <= 1
    x = toy.dataset().test_x[:7].float() / 255
    assert torch.equal(subject.images, x) and torch.equal(subject.labels, toy.dataset().test_y[:7])
    with torch.no_grad():
        assert torch.equal(subject.model(x), ien.load(run_folder)(x))


# --- a stranger's model


def test_code_with_weights_and_a_folder_of_images_is_measured(code: str, photos: Path) -> None:
    model = build_model("net.py:symmetric")
    save_file(model.state_dict(), "w.safetensors")
    arguments = (
        "measure",
        "net.py:build",
        "--weights",
        "w.safetensors",
        "--images",
        photos,
        "--group",
        "rot4",
    )
    text = invoke(*arguments, "--feature-groups", "4", "--layers", "1,3", "--out", "saved").stdout
    assert text.startswith("equivariance to rot4 over 5 images\n")
    layers = json.loads(Path("saved/report.json").read_text())["layers"]
    assert all(layers[name]["relative"] < 1e-10 for name in ("1", "3"))


def test_only_so_many_images_are_read_as_asked(code: str, photos: Path) -> None:
    done = invoke("measure", "net.py:build", "--images", photos, "--group", "rot4", "--number", "3")
    assert done.stdout.startswith("equivariance to rot4 over 3 images\n")


def test_the_model_itself_is_named_as_the_table_names_it(photos: Path) -> None:
    Path("conv.py").write_text("from torch import nn\ndef build():\n    return nn.Conv2d(3, 4, 3)\n")
    on = ("--images", photos, "--group", "rot4")
    text = invoke("measure", "conv.py:build", *on).stdout
    assert "(the model)" in text
    named = invoke("measure", "conv.py:build", *on, "--layers", "(the model),").stdout
    assert named.splitlines()[2].split()[:3] == ["(the", "model)", "10×10"]


def test_fail_above_is_a_gate(code: str, photos: Path) -> None:
    gate = ("--images", photos, "--group", "rot4", "--layers", "1,3", "--fail-above", "0.001")
    assert invoke("measure", "net.py:symmetric", *gate).exit_code == 0
    done = invoke("measure", "net.py:build", *gate, code=1)
    assert done.stderr.startswith("above 0.001, or constant: 1 ") and ", 3 " in done.stderr


def test_a_constant_layer_does_not_pass_the_gate(photos: Path) -> None:
    Path("dead.py").write_text(
        "from torch import nn\ndef build():\n    net = nn.Sequential(nn.Conv2d(3, 4, 3))\n"
        "    nn.init.zeros_(net[0].weight)\n    return net\n"
    )
    done = invoke(
        "measure", "dead.py:build", "--images", photos, "--group", "rot4", "--fail-above", "9", code=1
    )
    assert "or constant: 0 0" in done.stderr and "its maps are constant" in done.stdout


def test_a_module_and_a_ready_model_can_be_named_too(code: str) -> None:
    assert isinstance(build_model("net.py:READY"), nn.Sequential)
    assert isinstance(build_model("torch.nn:Identity"), nn.Identity)


def test_weights_in_a_checkpoint_of_a_training_script_are_found(code: str) -> None:
    source, target = build_model("net.py:build"), build_model("net.py:build")
    torch.save({"state_dict": source.state_dict(), "epoch": 3}, "checkpoint.pt")
    load_weights_into(target, Path("checkpoint.pt"))
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("executed", "w")


def test_bad_input_is_one_line_with_the_remedy(code: str, photos: Path) -> None:
    model = build_model("net.py:build")
    save_file({"other": torch.zeros(1)}, "other.safetensors")
    Path("damaged.safetensors").write_bytes(b"not weights")
    torch.save({"x": Evil()}, "evil.pt")
    Path("empty").mkdir()
    Path("syntax.py").write_text("def build(:\n")
    Path("cut").mkdir()
    Path("cut/a.png").write_bytes((photos / "0.png").read_bytes()[:60])
    Path("mixed").mkdir()
    Path("mixed/a.png").write_bytes((photos / "0.png").read_bytes())
    Image.new("RGB", (9, 12)).save("mixed/b.png")
    Path("deep").mkdir()
    Image.fromarray(np.full((12, 12), 40000, dtype=np.uint16)).save("deep/a.png")
    on = ("--images", photos, "--group", "rot4")
    wrong = {
        ("net.py:build", "--group", "rot4"): "needs images to be measured on: --images DIR",
        ("net.py:build", "--images", photos): "name the group to measure: --group rot4",
        ("net.py:build", "--images", "nowhere", "--group", "rot4"): "there is no folder nowhere",
        ("net.py:build", "--images", "empty", "--group", "rot4"): "empty holds no images",
        ("net.py:build", "--images", "cut", "--group", "rot4"): "cut/a.png cannot be read as an image",
        ("net.py:build", "--images", "mixed", "--group", "rot4"): "must have one size: mixed/b.png is 12×9",
        ("net.py:build", *on, "--number", "2", "--size", "1x12x12"): "the model fails on images 1×12×12",
        ("net.py:build", *on, "--size", "2x12x12"): "images have 1 or 3 channels",
        ("net.py:build", *on, "--size", "big"): "a size is written 3x224x224",
        ("net.py:build", *on, "--size", "3x12"): "a size is written 3x224x224",
        ("net.py:build", *on, "--layers", "6"): "layer '6' returned a tensor of shape",
        ("net.py:build", *on, "--layers", "stage"): "the model has no layer 'stage'",
        ("net.py:build", *on, "--group", "rott4"): "cannot read group 'rott4'",
        ("net.py:build", *on, "--weights", "w.pt"): "there is no file w.pt",
        ("net.py:build", *on, "--weights", "other.safetensors"): "other.safetensors does not fit the model",
        ("net.py:build", *on, "--weights", "damaged.safetensors"): "cannot be read as weights",
        ("net.py:build", *on, "--weights", "evil.pt"): "evil.pt cannot be read as weights",
        ("net.py:bild", *on): "net.py has no 'bild'; it has build",
        ("net.py:number", *on): "should return a torch.nn.Module; it returned a int",
        ("net.py:failing", *on): "net.py:failing raised LookupError: no such stage (line",
        ("net.py:needs", *on): "net.py:needs raised TypeError: needs() missing 1 required",
        ("syntax.py:build", *on): "syntax.py raised SyntaxError",
        ("nonet.py:build", *on): "there is no code file nonet.py",
        ("no.such.module:build", *on): "no.such.module cannot be imported: ModuleNotFoundError",
        ("net.py", *on): "there is no run folder net.py; a model from code is named as in code.py:build",
        ("runs/nope",): "there is no run folder runs/nope",
        (":build", *on): "as in code.py:build; got ':build'",
        ("net.py:exits", *on): "net.py:exits raised SystemExit: 3",
        ("net.py:build", *on, "--data", "here"): "--data is for a run",
        ("net.py:build", *on, "--size", "99999"): "a size is at most 8192 pixels",
        ("net.py:build", *on, "--fail-above", "nan"): "--fail-above takes a number such as 0.05; got nan",
        ("net.py:build", *on, "--out", "net.py"): "net.py is a file, and --out names a folder",
        (
            "net.py:build",
            "--images",
            "deep",
            "--group",
            "rot4",
        ): "deep/a.png cannot be read as an image (its pixels",
        ("empty",): "empty is not a run folder",
    }
    for arguments, message in wrong.items():
        assert message in error_of("measure", *arguments), arguments
    assert not Path("executed").exists()
    Path("one").mkdir()
    Path("one/a.png").write_bytes((photos / "0.png").read_bytes())
    assert "at least two images" in error_of("measure", "net.py:build", "--images", "one", "--group", "rot4")
    assert model is not None


# --- doctor


def test_doctor_names_the_operation_and_the_sizes(code: str) -> None:
    Path("strided.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())\n"
    )
    text = invoke("doctor", "strided.py:build", "--size", "3x32x32").stdout
    assert "0: conv 3×3, stride 2, padding 1, on 32×32" in text and "31 below, 33 above" in text
    assert invoke("doctor", "strided.py:build", "--size", "32", "--strict", code=1).stdout == text
    assert "exact" in invoke("doctor", "strided.py:build", "--size", "33", "--strict").stdout


def test_doctor_knows_the_image_size_of_a_run(run_folder: Path) -> None:
    assert invoke("doctor", run_folder, "--strict").stdout.startswith(
        "quarter turns and flips at 28×28: exact"
    )
    assert "at 29×29: not exact" in invoke("doctor", run_folder, "--size", "1x29x29").stdout


def test_doctor_says_what_it_needs(code: str) -> None:
    assert "say for which images: --size 3x224x224" in error_of("doctor", "net.py:build")
    assert "the model fails on an input" in error_of("doctor", "net.py:build", "--size", "1x12x12")
