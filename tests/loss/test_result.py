"""The targets of all views: each as its image was transformed, whatever it is nested in."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import ien
from tests.helpers.losses import R4, images

KINDS = {
    "mask": (lambda: torch.randint(9, (3, 8, 8)), "act_on_masks", ()),
    "boxes": (lambda: torch.rand(3, 5, 4).sort().values, "act_on_boxes", ((8, 8),)),
    "points": (lambda: torch.rand(3, 2), "act_on_points", ((8, 8),)),
    "vectors": (lambda: torch.randn(3, 4, 2), "act_on_vectors", ()),
    "angles": (lambda: 360 * torch.rand(3), "act_on_angles", ()),
}


def result(groups="rot4", samples=1, **call) -> ien.Equivariance:
    x = torch.rand(3, 1, 8, 8)
    return ien.EquivarianceLoss(groups, [], 1, samples=samples)(nn.Sequential(nn.Identity()), x, **call)


def test_repeat_follows_any_nest_of_tensors() -> None:
    x = images(3)
    out = ien.EquivarianceLoss(R4, [], 1, samples=2)(nn.Sequential(nn.Identity()), x)
    y, soft = torch.tensor([4, 5, 6]), torch.rand(3, 10)
    pair = namedtuple("pair", "label weight")
    assert out.repeat(y).tolist() == [4, 5, 6] * 3
    assert torch.equal(out.repeat(soft), torch.cat([soft, soft, soft]))
    nested = out.repeat({"a": y, "b": [soft, (y,)], "c": pair(y, soft)})
    assert nested["a"].tolist() == [4, 5, 6] * 3
    assert isinstance(nested["b"][1], tuple) and nested["b"][1][0].tolist() == [4, 5, 6] * 3
    assert isinstance(nested["c"], pair) and nested["c"].weight.shape == (9, 10)
    with pytest.raises(ValueError, match=r"each of the 3 images; got \(2,\)"):
        out.repeat(torch.zeros(2))
    with pytest.raises(TypeError, match="got int"):
        out.repeat(7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("samples", [0, 1, "all"])
def test_each_view_has_the_targets_of_its_own_elements(kind, samples) -> None:
    groups = [ien.group("rot4xflip"), ien.group("rot8")]
    out = result(groups, samples)
    make, method, more = KINDS[kind]
    y = make()
    expected = [y]
    first_views = {0: 0, 1: 1, "all": 7}[samples]  # of rot4xflip; the others are of rot8
    for i, g in enumerate(out.g.view(-1, 3)):
        group = groups[0] if i < first_views else groups[1]
        expected.append(getattr(group, method)(y, g, *more))
    torch.testing.assert_close(out.targets(y, kind=kind), torch.cat(expected), rtol=0, atol=0)
    nested = out.targets({"a": [y]}, kind=kind)
    assert torch.equal(nested["a"][0], out.targets(y, kind=kind))


def test_masks_cut_from_the_images_stay_with_them() -> None:
    """The mask of each view is the mask of the image that the model saw."""
    x = torch.randint(200, (3, 1, 8, 8)).float()
    out = ien.EquivarianceLoss(["rot4xflip"], [], 1, samples="all")(nn.Sequential(nn.Identity()), x)
    assert torch.equal(out.targets(x[:, 0].long(), kind="mask").float(), out.output[:, 0])


def test_unknown_corners_are_ignored() -> None:
    out = result("rot8", "all")
    y = out.targets(torch.zeros(3, 8, 8).long(), kind="mask", ignore=-100)
    of_views = (y == -100).flatten(1).any(1).view(8, 3)
    assert of_views.all(1).tolist() == [False, True, False, True, False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 2, 8, 8)])
def test_repeat_refuses_targets_that_look_like_maps(dtype, shape) -> None:
    y = torch.zeros(shape).to(dtype)
    with pytest.raises(ValueError, match=r'look like maps of the 8×8 images.*out\.targets\(y, kind="mask"\)'):
        result().repeat({"label": torch.arange(3), "mask": y})
    assert result().targets(y, kind="label").shape == (6, *shape[1:])
    assert torch.equal(result(samples=0).repeat(y), y)  # no view, nothing that rotates


def test_repeat_refuses_masks_as_large_as_what_the_model_returns() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2)), torch.rand(3, 1, 9, 9)
    out = ien.EquivarianceLoss("rot4", [], 1)(model, x)
    with pytest.raises(ValueError, match="look like maps of the 4×4 outputs"):
        out.repeat(torch.zeros(3, 4, 4).long())
    assert len(out.repeat(torch.zeros(3, 5, 5))) == 6
    pooled = nn.Sequential(model, nn.AdaptiveAvgPool2d(1))  # 1×1 maps are scores
    assert len(ien.EquivarianceLoss("rot4", [], 1)(pooled, x).repeat(torch.zeros(3, 1, 1))) == 6


def test_what_is_no_map_is_repeated() -> None:
    for y in (torch.zeros(3, 8), torch.zeros(3, 8, 7), torch.zeros(3, 4, 4)):
        assert len(result().repeat(y)) == 6


INVERT = ien.custom("negative", {"invert": lambda x: 1 - x}, "identity")
MISTAKES = [
    (
        lambda out: out.targets(torch.zeros(3, 8, 8), kind="masks"),
        ValueError,
        "kind of targets 'masks'; did you mean mask",
    ),
    (
        lambda out: out.targets(torch.zeros(2, 8, 8), kind="mask"),
        ValueError,
        r"targets needs .* each of the 3 images",
    ),
    (lambda out: out.targets("mask", kind="mask"), TypeError, "targets takes a tensor.*got str"),
    (
        lambda out: out.targets(torch.zeros(3, 8, 8), kind="points"),
        ValueError,
        r"points must have shape \(B, …, 2\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "match"), MISTAKES)
def test_wrong_targets_get_an_error_that_helps(call, error, match) -> None:
    with pytest.raises(error, match=match):
        call(result())


def test_targets_of_custom_groups_are_labels_or_unknown() -> None:
    out = result(INVERT)
    assert out.targets(torch.arange(3), kind="label").tolist() == [0, 1, 2] * 2
    with pytest.raises(ValueError, match="'invert' of negative is your own function"):
        out.targets(torch.zeros(3, 8, 8), kind="mask")
