"""Canonicalize: exact whatever it has learnt, and it does learn which way is up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ien
from ien._files import write_tensors
from ien.adapting.canonicalize import Canonicalize


def skies(count: int, side: int = 24) -> Tensor:
    """Images that are bright at the top, with noise: everyone can see which way is up."""
    height = torch.linspace(1, 0, side).view(1, 1, side, 1)
    return (height + 0.3 * torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))) / 1.3


def classifier() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 5)
    ).eval()


@pytest.mark.parametrize("group", ["rot4", "rot4xflip", "rot2", "flip"])
@pytest.mark.parametrize("fitted", [True, False])
def test_it_is_exactly_invariant_even_where_it_is_wrong(group: str, fitted: bool) -> None:
    images = torch.rand(40, 3, 24, 24, generator=torch.Generator().manual_seed(3))
    model = Canonicalize(classifier(), group)
    if fitted:
        model.fit(images, steps=2, progress=False)  # it has learnt nothing
    acting = ien.group(group)
    for element in range(len(acting)):
        moved = acting.act(images, torch.full((40,), element))
        assert torch.equal(model(moved), model(images))


def test_maps_rotate_with_the_image() -> None:
    images = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    net = nn.Conv2d(3, 2, 3, padding=1)
    model = Canonicalize(net, "rot4", outputs="map").fit(images, steps=2, progress=False)
    assert torch.equal(model(images.rot90(1, (2, 3))), model(images).rot90(1, (2, 3)))
    assert not torch.allclose(net(images.rot90(1, (2, 3))), net(images).rot90(1, (2, 3)), atol=1e-3)


def test_it_learns_which_way_is_up() -> None:
    images = skies(200)
    net = classifier()
    model = Canonicalize(net, "rot4").fit(images, steps=40, progress=False)
    assert model.accuracy is not None and model.accuracy > 0.9
    others = skies(400)[200:]
    assert (model.orientation(others) == 0).float().mean() > 0.9
    assert (model.orientation(others.rot90(1, (2, 3))) == 1).float().mean() > 0.9
    # so rotated images are answered as upright ones are by the model itself
    agrees = model(others.rot90(3, (2, 3))).argmax(1) == net(others).argmax(1)
    assert agrees.float().mean() > 0.9


def test_batches_and_a_tensor_teach_the_same() -> None:
    images = skies(96)
    whole = Canonicalize(classifier(), "rot4").fit(images, steps=3, progress=False)
    parts = Canonicalize(classifier(), "rot4").fit(iter(images.split(40)), steps=3, progress=False)
    assert whole.network is not None and parts.network is not None
    for a, b in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_without_fit_the_orientation_with_the_highest_confidence_wins() -> None:
    net = classifier()
    images = torch.rand(6, 3, 24, 24, generator=torch.Generator().manual_seed(3))
    small = nn.functional.interpolate(images, (12, 12), mode="bilinear", antialias=True)
    confidence = []
    for quarter in range(4):
        confidence.append(net(small.rot90(-quarter, (2, 3))).softmax(1).amax(1))
    expected = torch.stack(confidence).argmax(0)
    assert torch.equal(Canonicalize(net, "rot4").orientation(images), expected)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    images = skies(64)
    net = classifier()
    model = Canonicalize(net, "rot4xflip").fit(images, steps=3, progress=False)
    model.save(tmp_path / "up.safetensors")
    again = Canonicalize.load(net, tmp_path / "up.safetensors")
    assert torch.equal(again(images), model(images))
    assert again.group == model.group and again.accuracy == model.accuracy


def test_bad_input_gets_one_line(tmp_path: Path) -> None:
    net = classifier()
    with pytest.raises(
        ValueError, match="an orientation needs 32 different images or more, better thousands; got 10"
    ):
        Canonicalize(net, "rot4").fit(skies(10))
    with pytest.raises(
        ValueError, match=r"images must be square, .* got \(64, 3, 24, 20\): crop .*--size 224"
    ):
        Canonicalize(net, "rot4").fit(skies(64)[..., :20])
    with pytest.raises(ValueError, match=r"must have shape \(N, C, H, W\); got \(40, 16, 16\)"):
        Canonicalize(net, "rot4").fit(torch.rand(40, 16, 16))
    with pytest.raises(TypeError, match=r"images must be a tensor .*; got a str"):
        Canonicalize(net, "rot4").fit("photos")
    whole_numbers = (255 * skies(64)).byte()
    for given in (whole_numbers, whole_numbers.split(16)):
        with pytest.raises(ValueError, match=r"got torch.uint8: use \.float\(\) / 255"):
            Canonicalize(net, "rot4").fit(given)
    with pytest.raises(ValueError, match="Canonicalize needs rotations and flips"):
        Canonicalize(net, "scale0.7")
    with pytest.raises(ValueError, match="there is nothing to save"):
        Canonicalize(net, "rot4").save(tmp_path / "up.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="was not written by Canonicalize"):
        Canonicalize.load(net, tmp_path / "bad.safetensors")
    write_tensors(tmp_path / "other.safetensors", net.state_dict())
    with pytest.raises(ValueError, match=r"says nothing of ien\.canonicalize\): fit again, or pass the file"):
        Canonicalize.load(net, tmp_path / "other.safetensors")
    # the file is not blamed for a wrong argument beside it
    with pytest.raises(ValueError, match="outputs must be one of"):
        Canonicalize.load(net, tmp_path / "other.safetensors", outputs="mask")
    with pytest.raises(TypeError, match=r"Canonicalize needs a torch\.nn\.Module; got a str"):
        Canonicalize.load("net.pth", tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="was fitted to images of 3 channels; got 1"):
        Canonicalize(net, "rot4").fit(skies(64), steps=1)(skies(2)[:, :1])
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 2))
    with pytest.raises(ValueError, match="the model fails on copies of 12×12 pixels"):
        Canonicalize(fixed, "rot4")(skies(2))
    with pytest.raises(ValueError, match=r"must return scores \(B, classes\); it returns \(2, 4, 10, 10\)"):
        Canonicalize(nn.Conv2d(3, 4, 3), "rot4", outputs="map")(skies(2))


def test_images_that_come_again_count_once() -> None:
    images = skies(60)
    once = Canonicalize(classifier(), "rot4").fit(images, steps=3, progress=False)
    # as a loader that draws with replacement has them: else a tenth would be learnt and held out too
    again = Canonicalize(classifier(), "rot4").fit(
        [images[:40], images[10:], images], steps=3, progress=False
    )
    assert again.accuracy == once.accuracy
    for name, weight in once.network.state_dict().items():
        assert torch.equal(weight, again.network.state_dict()[name])
    with pytest.raises(ValueError, match="32 different images or more, better thousands; got 20"):
        once.fit([images[:20], images[:20]], progress=False)
