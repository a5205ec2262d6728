"""``ien symmetry``: a folder of pictures in, a verdict in words out."""

from unittest.mock import Mock

import pytest
import torch

from tests.helpers.shell import invoke

PIL = pytest.importorskip("PIL.Image")


def write(folder, every_class: int) -> None:
    """Pictures that are bright at the top or in the middle, by class."""
    rng = torch.Generator().manual_seed(0)
    for name, rows in (("top", slice(0, 4)), ("middle", slice(4, 8))):
        (folder / name).mkdir(parents=True)
        for i in range(every_class):
            pixels = torch.randint(100, (12, 12), generator=rng, dtype=torch.uint8)
            pixels[rows] += 100
            PIL.fromarray(pixels.numpy()).save(folder / name / f"{i}.png")


@pytest.mark.usefixtures("one_thread")
def test_a_verdict_for_each_group(tmp_path) -> None:
    write(tmp_path / "photos", 400)
    options = ("--group", "rot4,flip", "--epochs", "3", "--quick")
    output = invoke("symmetry", str(tmp_path / "photos"), *options).output
    assert "rot4 is no exact symmetry of these 640 images" in output
    assert "flip is a symmetry, as far as 640 images tell" in output


@pytest.mark.parametrize("options, progress", [((), True), (("--quiet",), False)])
def test_quiet_hides_the_progress_and_keeps_the_verdict(tmp_path, monkeypatch, options, progress) -> None:
    write(tmp_path / "photos", 10)
    listen = Mock(return_value="a verdict")
    monkeypatch.setattr("ien.tying.symmetry.symmetry", listen)
    assert "a verdict" in invoke("symmetry", tmp_path / "photos", *options).stdout
    assert listen.call_args.kwargs["progress"] is progress


def test_too_few_images_or_an_unknown_group_are_one_line(tmp_path) -> None:
    write(tmp_path / "photos", 10)
    few = invoke("symmetry", str(tmp_path / "photos"), code=2).output
    assert "16 images are too few to tell: use 640 or more" in " ".join(few.split())
    unknown = invoke("symmetry", str(tmp_path / "photos"), "--group", "rot4,turns", code=2).output
    assert "turns" in unknown and "Traceback" not in unknown
