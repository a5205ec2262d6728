"""``ien adapt``: three ways from the shell, what they write, and what they say to bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ien
from ien.cli import app

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
        (["--how", "adapt"], "say where to write the result"),
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
    ],
)
def test_bad_labels_get_one_line(place: Path, content: str, message: str) -> None:
    (place / "labels.csv").write_text(content)
    code, text = call(
        place, "--how", "average", "--test", f"{place}/photos", "--labels", f"{place}/labels.csv"
    )
    assert code == 2
    assert message in text and len(text.strip().splitlines()) == 1


def test_few_images_are_refused(place: Path) -> None:
    for i in range(10, 60):
        (place / "photos" / f"{i:02}.png").unlink()
    code, text = call(place, "--how", "canonicalize", "-o", f"{place}/up.safetensors")
    assert code == 2 and "8 different images are too few" in text
    code, text = call(place, "--how", "adapt", "--minutes", "0.1", "-o", f"{place}/up.safetensors")
    assert code == 2 and "images are too few" in text
