"""Segmentation: Dice against sets of pixels, masks that move with images, and runs end to end."""

import io

import pytest
import torch
from rich.console import Console
from torch import nn

import ien
from ien.data import mask_folders
from ien.data.dataset import NamedClasses
from ien.training import ALONE, run
from ien.training.segment import (
    IGNORED,
    SEGMENT,
    SegmentConfig,
    SegmentTask,
    check_maps,
    dice,
    evaluate_masks,
)
from tests.helpers.tiny import make_mask_folders


def config(**changes) -> SegmentConfig:
    settings = {"image_size": 16, "channels": 1, "width": 0.75, "epochs": 2, "cycle_epochs": 1}
    settings |= {"batch_size": 4, "device": "cpu", "threads": 1} | changes
    return SegmentConfig.of("mine/unet", "folder", **settings)


def dataset(count: int = 6, size: int = 16) -> NamedClasses:
    x = torch.randint(256, (count, 1, size, size), dtype=torch.uint8)
    y = (x[:, 0] > 127).to(torch.uint8)
    y[:, :2, :3] = IGNORED
    return NamedClasses("mine", "folder", x[:4], y[:4], x[4:], y[4:], 2, ("off", "on"))


def test_dice_is_twice_the_shared_pixels_over_all() -> None:
    a, b = torch.randint(0, 4, (2, 5, 7, 6))
    b[0, 0] = a[1, 2] = IGNORED
    b[2][b[2] == 3] = 0
    a[2][a[2] == 3] = 0
    found = dice(a, b, 4)
    for image in range(5):
        places = {}
        for name, mask, other in (("a", a, b), ("b", b, a)):
            for label in (1, 2, 3):
                places[name, label] = {
                    (i, j)
                    for i in range(7)
                    for j in range(6)
                    if mask[image, i, j] == label and other[image, i, j] != IGNORED
                }
        for label in (1, 2, 3):
            ours, theirs = places["a", label], places["b", label]
            if not ours | theirs:
                assert found[image, label - 1].isnan() and (image, label) == (2, 3)
                continue
            expected = 2 * len(ours & theirs) / (len(ours) + len(theirs))
            assert float(found[image, label - 1]) == pytest.approx(expected)


def test_unknown_pixels_change_neither_loss_nor_hits() -> None:
    data = dataset()
    task = SEGMENT.prepare(config(), data, ALONE)
    assert isinstance(task, SegmentTask)
    scores = torch.randn(4, 2, 16, 16)
    y = data.train_y.long()
    known = (y != IGNORED).flatten()
    flat = scores.permute(0, 2, 3, 1).reshape(-1, 2)[known]
    expected = nn.functional.cross_entropy(flat, y.flatten()[known])
    torch.testing.assert_close(task.loss(scores, y), expected)
    hits = 4 * (flat.argmax(1) == y.flatten()[known]).float().mean()  # all images have as many
    torch.testing.assert_close(task.hits(scores, y), hits)
    assert float(task.loss(scores, torch.full_like(y, IGNORED))) == 0


@pytest.mark.parametrize("views", [False, True])
def test_masks_move_with_their_images(views) -> None:
    data = dataset()
    changes = {"augment": True, "beta": 0.1} if views else {"transform": True}
    task = SEGMENT.prepare(config(**changes), data, ALONE)
    if not views:
        x, y = task.shown(torch.arange(4), slice(0, 4), (0, 0))
        assert not torch.equal(x, data.train_x / 255)
    else:
        x, y = data.train_x / 255, data.train_y.long()
        out = task.objective(task.model, x, generator=torch.Generator().manual_seed(0))
        y = task.with_views(y, out)
        x = torch.cat([x, ien.rotation(4).act(x, out.g)])
    # every mask was made by the brightness of its image: it still fits
    known = y != IGNORED
    assert len(x) == len(y) and torch.equal((x[:, 0] > 0.5)[known], (y == 1)[known])
    assert int((~known).sum()) == 6 * len(y)


class Threshold(nn.Module):
    """Bright pixels are class 1: right, and exactly equivariant, unless it is blind on the left."""

    def __init__(self, upright: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)
        with torch.no_grad():
            self.conv.weight[:] = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
            self.conv.bias[:] = torch.tensor([0.5, -0.5])
        self.upright, self.taps, self.feature_groups = upright, ("conv",), 1

    def forward(self, x):
        h = self.conv(x)
        if self.upright:
            h = h.clone()
            h[:, 1, :, :8] = -9.0
        return h


@pytest.mark.parametrize("upright", [False, True])
def test_scores_under_the_group_are_those_of_rotated_images_and_masks(upright) -> None:
    data = dataset(10)
    x, y = data.test_x, data.test_y
    model = Threshold(upright)
    found = evaluate_masks(config(), model, x, y)
    images, of_turn, same = x / 255, [], []
    plain = model(images).argmax(1)
    for k in range(4):
        predicted = model(images.rot90(k, (-2, -1))).argmax(1)
        turned = y.rot90(k, (-2, -1))
        of_turn.append(float(dice(predicted, turned, 2).mean()))
        same.append(float(dice(predicted, plain.rot90(k, (-2, -1)), 2).mean()))
    assert found["dice_per_element"] == pytest.approx(dict(zip(ien.rotation(4).labels, of_turn, strict=True)))
    assert found["dice"] == pytest.approx(of_turn[0])
    assert found["dice_under_group"] == pytest.approx(sum(of_turn) / 4)
    assert found["consistency"] == pytest.approx(sum(same[1:]) / 3)
    assert (found["consistency"] == 1) != upright and (found["dice"] == 1) != upright


@pytest.mark.usefixtures("one_thread")
def test_a_tied_unet_predicts_rotated_masks_for_rotated_images(tmp_path) -> None:
    pytest.importorskip("PIL.Image")
    make_mask_folders(tmp_path / "mine")
    settings = config(tie="smooth", slack="auto", dataset="mine", epochs=15)
    record = run(tmp_path / "run", settings, str(tmp_path / "mine"), console=Console(file=io.StringIO()))
    assert record["consistency"] == 1 and len(set(record["dice_per_element"].values())) == 1
    assert max(layer["relative"] for layer in record["layers"].values()) < 1e-6
    assert record["data"]["class_names"] == ["mask value 0", "mask value 255"]
    model = ien.load(tmp_path / "run")
    x = mask_folders.mask_folders(tmp_path / "mine", image_size=16).test_x / 255
    with torch.no_grad():
        rotated, ours = model(x.rot90(1, (-2, -1))), model(x).rot90(1, (-2, -1))
    torch.testing.assert_close(rotated, ours, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rotate": True}, "rotate would move images and leave their masks: use transform=true"),
        ({"average": True}, "average would move"),
        ({"model": "resnet18"}, "there is no model 'resnet18'"),
    ],
)
def test_settings_that_would_leave_masks_behind_are_refused(changes, match) -> None:
    with pytest.raises(ValueError, match=match):
        config(**changes)


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ({"out": torch.rand(2, 3, 8, 8)}, r"net returns a dict with out: scores \(2, 3, 8, 8\) for 2 images"),
        (torch.rand(2, 1, 8, 8), r"net returns float32 \(2, 1, 8, 8\): scores \(2, 3, 8, 8\).*3 channels"),
        (torch.rand(2, 3, 4, 4), r"maps the size of the image"),
    ],
)
def test_an_output_that_is_no_map_of_scores_is_told(output, match) -> None:
    with pytest.raises(ValueError, match=match):
        check_maps(output, (2, 1, 8, 8), 3, "net")
    check_maps(torch.rand(2, 3, 8, 8), (2, 1, 8, 8), 3, "net")
