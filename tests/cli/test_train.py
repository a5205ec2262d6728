"""``ien train``: a folder in, a run out that can be resumed, loaded and looked at; bad input in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ien
from ien.training import loop
from tests.helpers.shell import error_of, invoke
from tests.helpers.tiny import make_class_folders, make_mask_folders

Image = pytest.importorskip("PIL.Image", reason="images are read with pillow: pip install 'ien[plots]'")
pytestmark = pytest.mark.usefixtures("elsewhere", "one_thread")

QUICK = ("--epochs", "1", "--device", "cpu", "--threads", "1")
NET = """
from torch import nn

def build(num_classes, in_channels=3):
    return nn.Sequential(
        nn.Conv2d(in_channels, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, num_classes))

def ten():
    return build(10)

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = build(4)
    def forward(self, x):
        return {"logits": self.net(x)}

def colour():
    return build(4, 3)

def flat():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 4))

class Transformer(nn.Module):
    # a small vision transformer whose patches are cut by reshaping: no layer returns a map
    def __init__(self, num_classes):
        super().__init__()
        self.embed = nn.Linear(48, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, num_classes)
    def forward(self, x):
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4)                     # (B, 3, 4, 4, 4, 4)
        tokens = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (B, 16, 48)
        return self.head(self.block(self.embed(tokens)).mean(1))
"""


@pytest.fixture
def photos() -> Path:
    make_class_folders(Path("photos"), shape=(16, 20, 3))
    return Path("photos")


@pytest.fixture
def net() -> Path:
    Path("net.py").write_text(NET)
    return Path("net.py")


def test_a_folder_becomes_a_run_that_is_invariant_and_can_be_looked_at(photos) -> None:
    output = invoke("train", photos, "--model", "vgg", *QUICK).output
    run = Path("runs/photos/vgg-rot4-seed1")
    record = json.loads((run / "result.json").read_text())
    assert (
        record["config"]["objective"]["tie"] == "smooth" and record["config"]["objective"]["slack"] == "auto"
    )
    assert record["agreement"] == 1 and record["accuracy_under_group"] == record["accuracy"]
    assert record["data"]["class_names"] == [f"class {k}" for k in range(4)]
    assert "photos: 4 classes, 20 train and 12 test images" in output
    assert "agreement    100.0% of them are predicted alike under all of rot4" in output
    assert f"next         ien report {run} -o report.html" in output and f'ien.load("{run}")' in output
    model, x = ien.load(run), torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(model(x.rot90(1, (-2, -1))), model(x), atol=1e-4, rtol=1e-4)
    assert "was finished before" in invoke("resume", run).output
    assert "against the paper" not in invoke("show", run).output
    again = invoke("train", photos, "--model", "vgg", *QUICK).output
    assert f"{run} was finished before: choose another --name" in again and "agreement" in again
    invoke("report", run)
    assert Path("report.html").stat().st_size > 10_000


def test_an_ordinary_network_and_an_exactly_tied_one(photos) -> None:
    invoke("train", photos, "--model", "vgg", "--group", "none", *QUICK, "--name", "plain")
    plain = json.loads(Path("runs/plain/config.json").read_text())["config"]
    assert plain["objective"]["tie"] == "never" and plain["objective"]["group"] == "rot4"
    invoke("train", photos, "--model", "vgg", "--slack", "0", "--group", "rot4xflip", *QUICK)
    tied = json.loads(Path("runs/photos/vgg-rot4xflip-slack0-seed1/config.json").read_text())["config"]
    assert (tied["objective"]["slack"], tied["network"]["feature_groups"]) == ("0", "8")
    error = error_of("train", photos, "--model", "vgg", "--group", "none", *QUICK[2:], "--name", "plain")
    assert "holds another run (epochs 1, now 30" in error and "finished before" not in error


def test_only_auto_says_that_images_prefer_an_orientation(photos) -> None:
    output = invoke("train", photos, "--model", "vgg", "--slack", "0.1", *QUICK).output
    assert ", free from the start" in output and "prefer an orientation" not in output


@pytest.mark.parametrize("group", ["flip", "rot2"])
@pytest.mark.parametrize("model", ["vgg", "unet"])
def test_groups_of_two_elements_are_exact_too(group, model, photos) -> None:
    folder = photos
    if model == "unet":
        folder = Path("cells")
        make_mask_folders(folder)
    invoke("train", folder, "--model", model, "--group", group, "--slack", "0", *QUICK, "--name", "run")
    config = json.loads(Path("runs/run/config.json").read_text())["config"]
    assert config["network"]["feature_groups"] == "2"
    network = ien.load("runs/run").double()
    x = torch.rand(2, 3 if model == "vgg" else 1, 16, 16).double()
    move = {"flip": lambda h: h.flip(-1), "rot2": lambda h: h.rot90(2, (-2, -1))}[group]

    def error(act) -> float:
        expected = network(x)
        if model == "unet":
            expected = act(expected)  # masks move with the image
        return (network(act(x)) - expected).abs().max().item()

    # the quarter turn is not in the group: an untrained network may be almost constant, but not exact
    assert error(move) < error(lambda h: h.rot90(1, (-2, -1))) / 30


def test_a_network_without_maps_trains_as_it_is_and_not_under_a_group(photos, net) -> None:
    code = ("train", photos, "--model", "net.py:Transformer", *QUICK)
    error = error_of(*code)
    assert "which cannot rotate" in error and "; --group none trains it as it is\n" in error
    assert not Path("runs").exists()
    assert "so the loss has nothing to compare" in error_of(
        *code, "--group", "none", "--set", "beta=1", "--set", "augment=true"
    )
    output = invoke(*code, "--group", "none").output
    assert "next" not in output and "agreement" in output
    run = Path("runs/photos/net-none-seed1")
    record = json.loads((run / "result.json").read_text())
    names: dict = {}
    exec(NET, names)
    model = ien.load(run, build=names["Transformer"])
    right, alike = [], []
    files = sorted(Path("photos/test").glob("*/*.png"))
    for path in files:
        pixels = torch.from_numpy(np.array(Image.open(path).crop((2, 0, 18, 16)))).permute(2, 0, 1) / 255
        label = int(path.parent.name[-1])
        found = [int(model(pixels.rot90(k, (1, 2))[None]).argmax()) for k in range(4)]
        right += [prediction == label for prediction in found]
        alike.append(len(set(found)) == 1)
    assert record["accuracy_under_group"] == pytest.approx(sum(right) / len(right))
    assert record["accuracy"] == pytest.approx(sum(right[::4]) / len(files))
    assert record["agreement"] == pytest.approx(sum(alike) / len(files))
    assert record["layers"] == {} and "no layers to look at" in error_of(
        "report", run, "--model", "net.py:Transformer"
    )


def test_a_stopped_run_goes_on_with_the_same_command_to_the_same_weights(photos, monkeypatch) -> None:
    options = ("train", photos, "--model", "vgg", "--batch-size", "8", "--epochs", "2", *QUICK[2:])
    invoke(*options, "--name", "whole")
    steps = []
    step = loop.take_step

    def interrupted(*arguments):
        steps.append(0)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "take_step", interrupted)
    stopped = invoke(*options, "--name", "cut", code=130)
    assert "stopped; resume with: ien resume runs/cut" in stopped.output
    invoke(*options, "--name", "cut")
    whole, cut = ien.load("runs/whole").state_dict(), ien.load("runs/cut").state_dict()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_size_is_corrected_to_an_exact_one(photos, net) -> None:
    output = invoke("train", photos, "--model", "net.py:build", "--size", "18", *QUICK).output
    assert "size 19, where you asked for 18" in output and "(--set image_size=18 keeps it)" in output
    config = json.loads(Path("runs/photos/net-rot4-seed1/config.json").read_text())["config"]
    assert config["data"]["image_size"] == 19


def test_a_network_of_your_own_is_given_again_to_resume_load_and_report(photos, net) -> None:
    invoke("train", photos, "--model", "net.py:build", *QUICK)
    run = Path("runs/photos/net-rot4-seed1")
    config = json.loads((run / "config.json").read_text())["config"]["network"]
    assert config["code"] == f"{Path('net.py').absolute()}:build" and len(config["code_sha256"]) == 64
    with pytest.raises(ValueError, match="never executed by itself: give it again"):
        ien.load(run)
    names: dict = {}
    exec(NET, names)
    model = ien.load(run, build=names["build"])
    assert ien.load(run, names["build"](4))[0].weight.equal(model[0].weight)
    assert not model.training and model.taps == ("0", "1", "2", "3")
    x = torch.rand(3, 3, 17, 17)
    torch.testing.assert_close(model(x.rot90(1, (-2, -1))), model(x), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="does not fit the network"):
        ien.load(run, build=lambda: nn.Conv2d(1, 2, 3))
    assert "unknown: the network is your own" in " ".join(invoke("show", run).output.split())
    assert "never executed by itself" in error_of("report", run)
    assert "0.0" in invoke("measure", run, "--model", "net.py:build").output
    (run / "result.json").unlink()
    assert "never executed by itself" in error_of("resume", run)
    net.rename("moved.py")
    assert "(the file is missing now)" in error_of("resume", run)
    assert "is finished" in invoke("resume", run, "--model", "moved.py:build").output
    Path("net.py").write_text(NET + "\n# other\n")
    assert "net.py has changed since" in error_of("resume", run, "--model", "net.py:build")
    assert "net.py has changed since" in error_of("train", photos, "--model", "net.py:build", *QUICK)


def test_grey_pictures_are_shown_in_colour_to_a_network_that_needs_it(net) -> None:
    make_class_folders(Path("grey"), shape=(17, 17))
    output = invoke("train", "grey", "--model", "net.py:colour", *QUICK).output
    assert "the pictures are grey" in output and "is given three equal channels" in output


def test_masks_are_segmented(tmp_path) -> None:
    make_mask_folders(Path("cells"))
    output = invoke("train", "cells", *QUICK, "--size", "18").output
    assert "8 train and 4 test images with masks, mask values 0, 255" in output
    assert "size 16, where you asked for 18" in output and "agreement    1.000 Dice" in output
    run = "runs/cells/unet-rot4-seed1"
    assert f"next         ien report {run} -o report.html" in output
    assert ien.load(run)(torch.rand(1, 1, 16, 16)).shape == (1, 2, 16, 16)
    invoke("measure", run, "--out", "page")
    assert Path("page/report.html").exists()
    invoke("report", run, "-o", "report.html")
    assert "Dice" in Path("report.html").read_text()


def one_class(place: Path) -> None:
    for path in list(place.glob("*/class [1-9]")):
        shutil.rmtree(path)


def one_picture(place: Path) -> None:
    for path in (place / "train/class 2").glob("[1-9].png"):
        path.unlink()


def truncated(place: Path) -> None:
    path = place / "train/class 1/photo.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-2000])


def no_pictures(place: Path) -> None:
    for path in place.rglob("*.png"):
        path.rename(path.with_suffix(".txt"))


def emptied(place: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()


def a_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("no folder")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (one_class, "has one class, class 0, but two are needed at least"),
        (one_picture, "photos has 1 picture of class 2 to train on, and 2 are the fewest"),
        (truncated, "photo.jpg cannot be read as an image"),
        (no_pictures, "holds no images: their names must end in"),
        (emptied, "photos has no class folders with pictures"),
        (a_file, "photos is a file: give the folder that has a subfolder for each class"),
        (lambda place: (place / "test/class 3").rename(place / "test/cat"), "is a class that train has not"),
        (lambda place: shutil.rmtree(place), "there is no folder photos"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line_and_leaves_nothing(spoil, told, photos) -> None:
    spoil(photos)
    assert told in error_of("train", photos, "--model", "vgg", *QUICK)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model", "net.py:ten"], "net.py:ten returns float32 (2, 10): scores (2, 4)"),
        (["--model", "net.py:Wrapped"], "net.py:Wrapped returns a dict with logits: scores (2, 4)"),
        (["--model", "net.py:flat"], "does not rotate under rot4; doctor: 2, linear over 1568 inputs"),
        (["--model", "net.py:none"], "has no 'none'"),
        (["--model", "nothing.py:build"], "there is no code file"),
        (["--model", "resnet19"], "there is no model 'resnet19'; did you mean resnet18"),
        (["--model", "unet"], "unet segments, and photos has no masks"),
        (["--model", "net.py:build", "--width", "2"], "--width is for networks of ien"),
        (["--group", "turns"], "turns"),
        (["--group", "rot6"], "rot6 has 6 elements, and resnet18 takes groups of 2, 4 or 8"),
        (["--group", "rot90"], "rot90 has 90 elements, and resnet18 takes groups of 2, 4 or 8"),
        (["--slack", "much"], "slack must be auto, or a number of 0 or more; got much"),
        (["--ignore", "7"], "--ignore is a value of masks, and photos has none"),
        (["--set", "epoch=3"], "there is no field 'epoch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_fit_are_one_line_and_leave_nothing(options, told, photos, net) -> None:
    assert told in error_of("train", photos, *QUICK, *options)
    assert not Path("runs").exists()


def test_masks_that_do_not_fit_are_one_line_and_leave_nothing() -> None:
    make_mask_folders(Path("cells"))
    Image.fromarray(np.full((16, 16), 9, np.uint8)).save("cells/test/masks/1.png")
    assert "has the value 9, which no training mask has" in error_of("train", "cells", *QUICK)
    assert "resnet18 classifies, and cells has masks" in error_of(
        "train", "cells", "--model", "resnet18", *QUICK
    )
    assert not Path("runs").exists()
