"""Do the data have the symmetry? Against data that are made to have it, or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ien


def stripes(count: int, every_way: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images that are brighter at the top or at the bottom, by class; turned by chance if asked for."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=rng)
    images = torch.rand(count, 1, 12, 12, generator=rng)
    images[labels == 0, :, :4] += 0.5
    images[labels == 1, :, 3:9] += 0.5  # in the middle: a tied network can tell them apart
    if every_way:
        images = ien.rotation(4).act(images, torch.randint(4, (count,), generator=rng))
    return images, labels


@pytest.mark.usefixtures("one_thread")
def test_a_symmetry_is_found_where_it_is_and_nowhere_else() -> None:
    there = ien.symmetry(*stripes(640, every_way=True), "rot4", epochs=4)
    assert there.verdict == "exact" and abs(there.certainty) < 2
    assert str(there).startswith("rot4 is a symmetry, as far as 640 images tell")
    broken = ien.symmetry(*stripes(640, every_way=False), "rot4", epochs=4)
    assert broken.verdict == "broken" and broken.certainty > 4
    assert "rot4 is not a symmetry" in str(broken) and 'slack="auto"' in str(broken)
    # bars lie level: mirrored left to right, they are as likely as before
    mirrored = ien.symmetry(*stripes(640, every_way=False), "flip", epochs=4)
    assert mirrored.verdict == "exact"
    assert len(broken.by_epoch) == 4 and len(broken.by_layer) == 4


@pytest.mark.usefixtures("one_thread")
def test_labels_that_mean_nothing_break_no_symmetry_and_a_seed_repeats() -> None:
    images, labels = stripes(640, every_way=False)
    shuffled = labels[torch.randperm(640)]
    first = ien.symmetry(images, shuffled, "rot4", epochs=2)
    assert first.certainty < 4
    assert ien.symmetry(images, shuffled, "rot4", epochs=2) == first


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(640, 12, 12), torch.zeros(640).long(), r"images must be a batch \(N, C, H, W\)"),
        (torch.rand(640, 1, 12, 12), torch.zeros(3).long(), "labels must be 640 whole numbers"),
        (torch.rand(640, 1, 12, 12), torch.zeros(640), "labels must be 640 whole numbers"),
        (torch.rand(64, 1, 12, 12), torch.zeros(64).long(), "64 images are too few to tell: use 640"),
        (torch.rand(640, 1, 12, 12), torch.zeros(640).long(), "two classes or more"),
        (torch.full((640, 1, 12, 12), torch.nan), torch.arange(640) % 2, "NaN or infinite"),
    ],
)
def test_bad_input_is_named(images, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        ien.symmetry(images, labels, "rot4")


def test_elements_that_resample_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="rot8 has elements that resample, which cannot be tested"):
        ien.symmetry(*stripes(640, every_way=True), "rot8")


def test_one_epoch_is_too_few() -> None:
    with pytest.raises(ValueError, match="epochs must be 2 or more; got 1"):
        ien.symmetry(*stripes(640, every_way=True), "rot4", epochs=1)
