"""``ien adapt``: three ways from the shell, what they write, and what they say to bad input."""

from __future__ import annotations

import inspect
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ien
from ien.cli import app
from ien.report.opened import open_run
from tests.helpers import toy

CODE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model, its weights, 60 photos and labels for them."""
    (tmp_path / "net.py").write_text(CODE)
    photos = tmp_path / "photos"
    photos.mkdir()
    lines = ["file,class_index"]
    pixels = torch.randint(256, (60, 16, 16, 3), generator=torch.Generator().manual_seed(0)).byte()
    for i in range(60):
        Image.fromarray(pixels[i].numpy()).save(photos / f"{i:02}.png")
        lines.append(f"{i:02}.png,{i % 4}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    return tmp_path


def call(place: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app, ["adapt", f"{place}/net.py:build", "--images", f"{place}/photos", *words]
    )
    return result.exit_code, result.output


def build(place: Path) -> torch.nn.Module:
    names: dict[str, object] = {}
    exec((place / "net.py").read_text(), names)
    return names["build"]()  # type: ignore[operator]


def test_average_trains_nothing_and_says_what_it_is(place: Path) -> None:
    code, text = call(
        place, "--how", "average", "--test", f"{place}/photos", "--labels", f"{place}/labels.csv"
    )
    assert code == 0, text
    assert "60 images under rot4" in text and "right upright" in text
    (alike,) = [line for line in text.splitlines() if line.startswith("same answer under all")]
    assert alike.split()[-1] == "100.0%"
    assert "ien.GroupAverage(model, " in text


def test_canonicalize_writes_a_network_that_loads(place: Path) -> None:
    out = place / "up.safetensors"
    code, text = call(place, "--how", "canonicalize", "--steps", "2", "-o", str(out))
    assert code == 0, text
    assert "12 images under rot4" in text  # a fifth of them
    model = ien.Canonicalize.load(build(place), out)
    x = torch.rand(4, 3, 16, 16)
    assert torch.equal(model(x), model(x.rot90(1, (2, 3))))


def test_adapt_writes_weights_of_the_same_model_and_goes_on(place: Path) -> None:
    out = place / "adapted.safetensors"
    words = ["--how", "adapt", "-o", str(out), "--resume", f"{place}/state"]
    code, text = call(place, *words, "--minutes", "0.005")
    assert code == 0, text
    first = torch.load(place / "state" / "adapting.pt", weights_only=True)["step"]
    code, text = call(place, *words, "--minutes", "0.01")
    assert code == 0, text
    assert torch.load(place / "state" / "adapting.pt", weights_only=True)["step"] > first
    from safetensors.torch import load_file

    build(place).load_state_dict(load_file(out))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--how", "adapt"], "say where to write the result: -o adapted.safetensors"),
        (["--how", "adpt"], "there is no --how adpt; did you mean adapt"),
        (
            ["--how", "average", "-o", "x.safetensors"],
            "trains nothing, so there is nothing to write: drop -o",
        ),
        (["--how", "average", "--minutes", "1"], "--minutes is for --how adapt, and --how average does not"),
        (["--how", "average", "--resume", "x"], "--resume is for --how adapt"),
        (["--how", "average", "--layers", "0"], "--layers is for --how adapt"),
        (["--share", "1", "-o", "x.safetensors"], "--share is for --how adapt, and --how canonicalize does"),
        (["--batch-size", "8", "-o", "x.safetensors"], "--batch-size is for --how adapt"),
        (["--learning-rate", "1", "-o", "x.safetensors"], "--learning-rate is for --how adapt"),
        (["--how", "adapt", "--steps", "9", "-o", "x.safetensors"], "--steps is for --how canonicalize"),
        (["-o", "x.pth"], "-o should end in .safetensors; got x.pth: use -o x.safetensors"),
        (["-o", "."], "-o should name a file, and . is a folder: -o canonicalize.safetensors"),
        (["--how", "average", "--outputs", "maps"], "there is no --outputs 'maps'; did you mean map"),
        (["--how", "average", "--outputs", "a=map,box"], "write --outputs map, or --outputs key=kind"),
        (["--how", "average", "--outputs", "map"], 'returns (1, 32): say what that is, outputs="scores" for'),
        (
            ["--how", "average", "--outputs", "map", "--test", "x", "--labels", "x.csv"],
            "with --outputs map there are none",
        ),
        (["--how", "average", "--labels", "x.csv"], "--labels belong to the images of --test"),
        (["--how", "average", "--test", "nowhere"], "there is no folder nowhere with images"),
        (["--how", "average", "--group", "rott4"], "rott4"),
        (
            ["--how", "canonicalize", "-o", "x.safetensors", "--group", "scale0.7"],
            "needs rotations and flips",
        ),
        (["--how", "average", "--weights", "no.pt"], "there is no file no.pt with weights"),
    ],
)
def test_bad_input_gets_one_line(place: Path, words: list[str], message: str) -> None:
    code, text = call(place, *words)
    *notes, error = text.strip().splitlines()
    assert code == 2
    assert message in error
    assert all(note.startswith("no --weights") for note in notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "should begin with the line 'file,class_index'"),
        ("file,class_index\n00.png,cat", "line 2 of"),
        ("file,class_index\nx.png,1", "names none of the 60 images, such as 00.png"),
        (
            "file,class_index\n00.png,1\n01.png,2\n00.png,3",
            "two classes for 00.png: 1 in line 2, 3 in line 4",
        ),
        ("file,class_index\n00.png,1234567890", "line 2 of"),
        (b"file,class_index\n\xff,1", "cannot be read as a table"),
    ],
)
def test_bad_labels_get_one_line(place: Path, content: str | bytes, message: str) -> None:
    (place / "labels.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    code, text = call(
        place, "--how", "average", "--test", f"{place}/photos", "--labels", f"{place}/labels.csv"
    )
    assert code == 2
    assert message in text and len(text.strip().splitlines()) == 1


def table(place: Path, *lines: str) -> list[str]:
    (place / "labels.csv").write_text("\n".join(["file,class_index", *lines]))
    return ["--how", "average", "--test", f"{place}/photos", "--labels", f"{place}/labels.csv"]


def test_labels_of_no_class_are_refused(place: Path) -> None:
    code, text = call(place, *table(place, "00.png,3", "01.png,32"))
    assert code == 2
    assert text.splitlines()[-1].endswith(
        "labels name class 32, but the model returns 32 scores, for classes 0 to 31"
    )


def test_labels_name_images_by_path_before_file_name(place: Path) -> None:
    inner = place / "photos" / "inner"
    inner.mkdir()
    for name in ("00.png", "01.png"):
        (inner / name).write_bytes((place / "photos" / name).read_bytes())
    (place / "photos" / "01.png").rename(place / "photos" / "other.png")
    code, text = call(place, *table(place, "00.png,1", "inner/00.png,2", "01.png,3", "none.png,1"))
    assert code == 0, text
    assert "3 images under rot4" in text
    assert "labels for 3 of the 62 images, and the table is of these; names without an image: 1, such" in text
    (place / "photos" / "deeper").mkdir()
    (place / "photos" / "deeper" / "01.png").write_bytes((inner / "01.png").read_bytes())
    code, text = call(place, *table(place, "01.png,1"))
    assert code == 2
    assert "01.png may be deeper/01.png or inner/01.png: write its path in" in text


def test_classes_belong_to_their_images(place: Path) -> None:
    with torch.no_grad():
        torch.manual_seed(0)  # as the command draws the weights
        net = build(place).eval()
        lines = []
        for path in sorted((place / "photos").glob("*.png")):
            pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None].float() / 255
            lines.append(f"{path.name},{int(net(pixels).argmax())}")
    code, text = call(place, *table(place, *reversed(lines)))
    assert code == 0, text
    (right,) = [line for line in text.splitlines() if line.startswith("right upright")]
    assert right.split()[2] == "100.0%"


def test_many_images_are_tested_on_some_from_all_over_the_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ien.cli.adapt.MAX_TESTED", 4)
    (place / "net.py").write_text(CODE.replace("nn.Flatten()", "nn.Flatten(), Brightest()") + BRIGHTEST)
    lines = []
    for i in range(60):
        Image.fromarray(np.full((16, 16, 3), 4 * i, dtype=np.uint8)).save(place / "photos" / f"{i:02}.png")
        lines.append(f"{i:02}.png,{1 if i in (0, 15, 30, 45) else 0}")  # the others are wrong
    code, text = call(place, *table(place, *lines))
    assert code == 0, text
    assert "4 images under rot4" in text
    (right,) = [line for line in text.splitlines() if line.startswith("right upright")]
    assert right.split()[2] == "100.0%"


BRIGHTEST = """

class Brightest(nn.Module):
    def forward(self, x):
        return torch.tensor([0.0, 1.0]).expand(len(x), 2)
"""


DENSE = """
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        maps = self.conv(x)
        return {"maps": maps, "at": maps.mean((2, 3))[:, :2]}

def build():
    return nn.Conv2d(3, 3, 3, padding=1)

def two():
    return Two()
"""


@pytest.mark.parametrize(
    ("name", "outputs", "row"),
    [
        ("build", "map", "same answer at 90°"),
        ("two", "maps=map,at=points", "error of at at 90°"),
    ],
)
@pytest.mark.parametrize(
    "way",
    [
        ["--how", "average"],
        ["--how", "canonicalize", "--steps", "2", "-o", "up.safetensors"],
        ["--how", "adapt", "--minutes", "0.005", "-o", "up.safetensors"],
    ],
)
def test_what_is_no_score_is_adapted_too(
    place: Path, name: str, outputs: str, row: str, way: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "dense.py").write_text(DENSE)
    words = ["adapt", f"dense.py:{name}", "--images", "photos", "--outputs", outputs, *way]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert row in result.output
    said = {"average": "ien.GroupAverage(model, ", "canonicalize": "Canonicalize.load(model, "}.get(
        way[1], ""
    )
    assert said in result.output and (not said or "outputs=" in result.output)


def test_the_numbers_of_adapt_are_passed_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ien.adapting import adapt as module

    seen: dict[str, object] = {}

    def record(model: torch.nn.Module, images: object, group: str, **options: object) -> torch.nn.Module:
        batches = iter(images)  # type: ignore[call-overload]
        seen.update(options, images=len(next(batches)))
        return model

    default = inspect.signature(ien.adapt).parameters["batch_size"].default
    monkeypatch.setattr(module, "adapt", record)
    words = ["--how", "adapt", "-o", f"{place}/new/folder/up.safetensors"]
    numbers = ["--share", "0.5", "--learning-rate", "0.001", "--batch-size", "7", "--minutes", "3"]
    code, text = call(place, *words, *numbers, "--layers", "0,1", "--resume", "state")
    assert code == 0, text
    wanted = {"share": 0.5, "learning_rate": 0.001, "batch_size": 7, "minutes": 3.0, "images": 7}
    wanted |= {"layers": ["0", "1"], "folder": Path("state"), "seed": 0, "outputs": "scores"}
    assert seen == wanted
    assert (place / "new" / "folder" / "up.safetensors").is_file()
    seen.clear()
    code, text = call(place, *words)
    assert code == 0, text
    assert seen == {"outputs": "scores", "seed": 0, "images": default}


def test_what_would_fail_after_training_fails_before(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ien.adapting import adapt as module

    monkeypatch.setattr(module, "adapt", Mock(side_effect=AssertionError("it trained")))
    words = ["--how", "adapt", "-o", f"{place}/new/up.safetensors"]
    (place / "file").write_text("")
    code, text = call(place, "--how", "adapt", "-o", f"{place}/file/up.safetensors")
    assert code == 2 and "file" in text.splitlines()[-1]
    test = place / "test"
    test.mkdir()
    for shape, message in (
        ((16, 20, 3), "images must be square"),
        ((16, 16), "the model fails on images 1×16×16"),
    ):
        Image.fromarray(np.zeros(shape, dtype=np.uint8)).save(test / "0.png")
        code, text = call(place, *words, "--test", str(test))
        assert code == 2 and message in text.splitlines()[-1]
    Image.fromarray(np.zeros((16, 16, 3), dtype=np.uint8)).save(test / "0.png")
    (test / "1.png").write_text("broken")
    code, text = call(place, *words, "--test", str(test))
    assert code == 2 and "1.png cannot be read as an image" in text
    (place / "net.py").write_text(CODE.replace("nn.Flatten())", "nn.Flatten(), nn.Linear(32, 4))") + BROKEN)
    code, text = call(place, *words)
    assert code == 2 and "'original' answers with NaN or infinity" in text
    assert not (place / "new").exists()


BROKEN = """
whole = build

def build():
    net = whole()
    net[4].weight.data.fill_(float("nan"))
    return net
"""


@pytest.mark.parametrize("resume", [True, False])
def test_ctrl_c_says_how_to_go_on(place: Path, resume: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from ien.adapting import adapt as module

    def step(*_: object) -> float:
        signal.raise_signal(signal.SIGINT)
        return 1.0

    monkeypatch.setattr(module, "share_of_peak", step)
    words = ["--how", "adapt", "-o", f"{place}/up.safetensors"]
    code, text = call(place, *words, *(["--resume", f"{place}/state"] if resume else []))
    assert code == 130
    if resume:
        assert f"stopped; the same command goes on from {place}/state" in text
        assert (place / "state" / "adapting.pt").is_file()
    else:
        assert "stopped; nothing was written" in text
    assert not (place / "up.safetensors").exists()


def test_photographs_are_cut_to_the_square_in_the_middle(place: Path) -> None:
    for i in range(60):
        Image.fromarray(np.full((16, 24, 3), i, dtype=np.uint8)).save(place / "photos" / f"{i:02}.png")
    code, text = call(place, "-o", f"{place}/up.safetensors", "--steps", "2")
    assert code == 2 and "images must be square" in text and "--size" in text
    code, text = call(place, "-o", f"{place}/up.safetensors", "--steps", "2", "--size", "16")
    assert code == 0, text


@pytest.mark.usefixtures("elsewhere", "toy_data")
def test_a_run_is_adapted_as_it_was_loaded(place: Path) -> None:
    run = place / "ien-r4"
    assert toy.finish(toy.start(toy.train, run)) == 0
    _, channels, side, _ = open_run(run, count=2).images.shape
    out = place / "adapted.safetensors"
    words = ["--images", f"{place}/photos", "--size", f"{channels}x{side}x{side}", "-o", str(out)]
    result = CliRunner().invoke(app, ["adapt", str(run), *words, "--how", "adapt", "--minutes", "0.005"])
    assert result.exit_code == 0, result.output
    from safetensors.torch import load_file

    ien.load(run).load_state_dict(load_file(out))
    result = CliRunner().invoke(app, ["adapt", str(run), *words, "--weights", "w.pt"])
    assert result.exit_code == 2 and "is a run and has its own" in result.output
    result = CliRunner().invoke(app, ["adapt", f"{run}-no", *words])
    assert result.exit_code == 2 and "there is no run folder" in result.output


def test_few_images_are_refused(place: Path) -> None:
    for i in range(10, 60):
        (place / "photos" / f"{i:02}.png").unlink()
    for how in ("canonicalize", "adapt"):
        code, text = call(place, "--how", how, "-o", f"{place}/up.safetensors")
        assert code == 2 and "8 images to train on, and 2 held out for the table" in text
        assert f"--how {how} needs 32 or more" in text
    for i in range(1, 10):
        (place / "photos" / f"{i:02}.png").unlink()
    for how in ("canonicalize", "adapt"):
        code, text = call(place, "--how", how, "-o", f"{place}/up.safetensors")
        assert code == 2 and "0 images to train on, and 1 held out for the table" in text
    code, text = call(place, "--how", "average")
    assert code == 0 and "1 image under rot4" in text


def test_a_table_of_images_that_were_learnt_from_says_so(place: Path) -> None:
    words = ["--test", f"{place}/photos", "--minutes", "0.005", "-o", f"{place}/new.safetensors"]
    code, text = call(place, "--how", "adapt", *words)
    assert code == 0 and "60 of 60 images of the table are learnt from, too: the table flatters" in text
    code, text = call(place, "--how", "adapt", *words[2:])  # every fifth is held out
    assert code == 0 and "flatters" not in text


def test_images_that_are_all_the_same_are_too_few_to_learn_which_way_is_up(place: Path) -> None:
    photos = sorted((place / "photos").glob("*.png"))
    for photo in photos[1:]:
        photo.write_bytes(photos[0].read_bytes())
    code, text = call(place, "--how", "canonicalize", "-o", f"{place}/up.safetensors")
    assert code == 2 and "needs 32 different images or more, better thousands; got 1" in text
