"""The explorer's data: probabilities, errors and maps against the model on the transformed image."""

import base64
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien.report.opened import Opened, OpenedRun, open_runs
from ien.report.page.changing import choose_images
from ien.report.page.explorer import explore
from ien.report.page.pictures import MAX_MAP_SIZE, pack
from ien.report.page.sweeps import groups_of, sweeps_of
from ien.training.segment import IGNORED, dice
from tests.helpers import toy

pytestmark = pytest.mark.usefixtures("toy_data")


def pooled(run: OpenedRun, layer: str, x: Tensor) -> Tensor:
    with torch.no_grad(), ien.capture(run.model, layer) as features:
        run.model(x)
    return ien.group_pool(features[layer], run.feature_groups)


def variances(run: OpenedRun) -> dict[str, float]:
    """Of the maps of all its images, as ``measure`` has them."""
    return {layer: float(pooled(run, layer, run.images).double().var(unbiased=False)) for layer in run.layers}


@pytest.fixture(scope="module")
def found(opened_runs):
    return explore(opened_runs, [variances(run) for run in opened_runs], images=3, maps=4)


def test_probabilities_are_those_of_the_model_on_the_transformed_image(found, opened_runs) -> None:
    for sweep in found.content["sweeps"]:
        for shown, run in zip(found.content["runs"], opened_runs, strict=True):
            for i, image in enumerate(found.content["images"]):
                x = run.images[image["index"]][None]
                for at in range(0, len(sweep["values"]), 7):
                    value = sweep["values"][at]
                    if sweep["kind"] == "rotation":
                        x_g = ien.rotation(72).act(x, torch.tensor([at]))
                    else:
                        x_g = x if value == 1 else ien.scale(value).act(x, torch.tensor([1]))
                    p = run.model(x_g).detach().double().softmax(1)[0]
                    seen, place = shown["images"][i], sweep["start"] + at
                    expected = p[image["classes"]].tolist()
                    assert seen["probabilities"][place] == pytest.approx(expected, rel=1e-3)
                    assert seen["predicted"][place] == int(p.argmax())
                    assert seen["confidence"][place] == pytest.approx(float(p.max()), rel=1e-4)


def test_errors_are_the_loss_over_the_variance(found, opened_runs) -> None:
    group = ien.rotation(72)
    count = sum(len(sweep["values"]) for sweep in found.content["sweeps"])
    for shown, run in zip(found.content["runs"], opened_runs, strict=True):
        x = run.images[found.content["images"][1]["index"]][None]
        for k, (layer, variance) in enumerate(variances(run).items()):
            errors = shown["images"][1]["errors"][k]
            assert errors[0] == 0 and len(errors) == count
            for g in (torch.tensor([at]) for at in (1, 9, 18, 40, 71)):
                h, h_g = pooled(run, layer, x), pooled(run, layer, group.act(x, g))
                if group.coverage((h.shape[2], h.shape[3]))[int(g)] == 0:
                    assert errors[int(g)] is None
                else:
                    expected = float(ien.equivariance_loss(h, h_g, group, g)) / variance
                    assert errors[int(g)] == pytest.approx(expected, rel=1e-3)


def test_frames_are_the_most_varying_maps_within_half_a_step(found, opened_runs) -> None:
    group, run, shown = ien.rotation(72), opened_runs[0], found.content["runs"][0]
    chosen = run.images[[image["index"] for image in found.content["images"]]]
    for k, layer in enumerate(run.layers):
        about = shown["layers"][k]
        order = pooled(run, layer, chosen).var((0, 2, 3)).argsort(descending=True)
        assert about["maps"] == order[:4].tolist()
        h = pooled(run, layer, group.act(chosen[2:3].expand(72, -1, -1, -1), torch.arange(72)))
        assert about["size"] == about["stored"] == list(h.shape[2:])
        for m, text in enumerate(shown["images"][2]["frames"][k]):
            low, high = shown["images"][2]["ranges"][k][m]
            steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(-1, *h.shape[2:])
            frames = np.cumsum(steps, axis=0, dtype=np.uint8)[:72]
            restored = low + frames.astype(float) * (high - low) / 255
            assert np.abs(restored - h[:, about["maps"][m]].numpy()).max() <= 0.501 * (high - low) / 255


def test_pictures_are_the_images_byte_for_byte(found) -> None:
    images = toy.dataset().test_x
    for image in found.content["images"]:
        stored = np.frombuffer(base64.b64decode(image["pixels"]), np.uint8).reshape(image["size"])
        assert (stored == images[image["index"]].numpy()).all()
        assert image["label"] == int(toy.dataset().test_y[image["index"]])


def test_fewer_images_and_maps_can_be_cut_out(found) -> None:
    cut = found.cut(2, 1)
    assert len(cut["images"]) == 2 and cut["sweeps"] == found.content["sweeps"]
    for run in cut["runs"]:
        assert [len(layer["maps"]) for layer in run["layers"]] == [1] * 6
        for image in run["images"]:
            assert [len(frames) for frames in image["frames"]] == [1] * 6
    sizes = list(found.smaller())
    assert sizes[0] == (3, 4) and sizes[-1] == (1, 1) and len(set(sizes)) == len(sizes)


@pytest.mark.parametrize(
    "own", [[0.7, 0.84], [1.3], [2 ** (k / 3) for k in (-3, -2, -1, 1, 2, 3)], [0.3, 1.05, 1.06]], ids=str
)
def test_factors_are_spread_around_one_with_the_groups_own_among_them(own) -> None:
    (sweep,) = sweeps_of([ien.scale(own)])
    values = np.array(sweep.values)
    assert sweep.kind == "scale" and set(own) <= set(values) and sweep.marks == tuple(sorted({1, *own}))
    assert values[len(values) // 2] == 1 and len(values) % 2 == 1 and (np.diff(values) > 0).all()
    assert values[0] * values[-1] == pytest.approx(1, abs=1e-4)
    reach = max(abs(np.log(own)))
    assert abs(np.log(values)).max() == pytest.approx(reach, rel=1e-4)
    assert np.diff(np.log(values)).max() < 0.16 * reach and 21 <= len(values) <= 21 + 2 * len(own)
    assert sweep.group.matrices[:, 0, 0][sweep.g].tolist() == pytest.approx(list(sweep.values))


@pytest.mark.parametrize(
    ("groups", "kinds"),
    [
        (["rot4"], ["rotation"]),
        (["flip"], ["rotation"]),
        (["scale0.7", "scale2"], ["scale"]),
        (["rot4", "scale0.7"], ["rotation", "scale"]),
        (["flipxscale1.3"], ["rotation", "scale"]),
    ],
)
def test_sweeps_are_those_of_the_groups(groups, kinds) -> None:
    sweeps = sweeps_of([ien.group(text) for text in groups])
    assert [sweep.kind for sweep in sweeps] == kinds
    if kinds[0] == "rotation":
        assert sweeps[0].values == tuple(range(0, 360, 5)) and sweeps[0].g.tolist() == list(range(72))


def test_a_run_measured_under_several_groups_has_the_sweeps_of_all() -> None:
    measured = [(ien.rotation(4), ien.scale([0.5])), (ien.scale([2]),)]
    runs = [SimpleNamespace(measured_groups=groups) for groups in measured]
    assert [str(group) for group in groups_of(runs)] == ["rot4", "scale0.5", "scale2"]


def test_images_are_of_different_classes_first() -> None:
    labels = torch.tensor([5, 5, 5, 2, 5, 2, 9])
    assert choose_images(labels, 5) == [0, 3, 6, 1, 2]
    assert choose_images(labels, 99) == [0, 3, 6, 1, 2, 4, 5]


def test_masks_are_what_is_predicted_and_their_dice_is_with_the_rotated_truth(segment_runs) -> None:
    runs = open_runs(segment_runs)
    content = explore(runs, [dict.fromkeys(run.layers, 1.0) for run in runs], images=2, maps=1).content
    assert content["kind"] == "pixels"
    group = ien.rotation(72)
    for shown, run in zip(content["runs"], runs, strict=True):
        for seen, image in zip(shown["images"], content["images"], strict=True):
            x, truth = run.images[image["index"]], run.masks[image["index"]]
            stored = np.frombuffer(base64.b64decode(image["mask"]["pixels"]), np.uint8).reshape(16, 16)
            assert np.array_equal(stored, truth.numpy()) and image["name"].endswith(" of the test set")
            steps = np.frombuffer(zlib.decompress(base64.b64decode(seen["mask"]["frames"])), np.uint8)
            masks = steps.reshape(72, 16, 16).cumsum(0, dtype=np.uint8)
            for k in (0, 5, 18, 36, 54):
                g = torch.tensor([k])
                predicted = run.model(group.act(x[None], g)).argmax(1)
                assert np.array_equal(masks[k], predicted[0].numpy())
                expected = float(dice(predicted, group.act_on_masks(truth[None], g, ignore=IGNORED), 2))
                assert (seen["dice"][k] or 0.0) == pytest.approx(
                    0.0 if expected != expected else expected, rel=1e-5
                )


def test_constant_frames_pack_to_zeros() -> None:
    text, limits = pack(torch.full((3, 2, 2), 7.0))
    assert zlib.decompress(base64.b64decode(text)) == bytes(12) and limits == [7, 7]


def opened(net: nn.Module, images: Tensor, layers: tuple[str, ...] = ("0",), **more: Any) -> Opened:
    return Opened(
        name="net",
        model=net.eval(),
        layers=layers,
        feature_groups=1,
        group=ien.rotation(4),
        images=images,
        **more,
    )


def test_many_classes_have_the_likeliest_bars_and_large_maps_are_averaged() -> None:
    conv = nn.Conv2d(3, 6, 3, padding=1)
    net = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 50))
    run = opened(net, torch.rand(2, 3, 100, 100), labels=torch.tensor([49, 3]))
    found = explore([run], [{"0": 1.0}], images=2, maps=3).content
    first = next(image for image in found["images"] if image["label"] == 49)
    assert first["size"] == [3, 96, 96] and len(first["classes"]) == 10 and 49 in first["classes"]
    (layer,) = found["runs"][0]["layers"]
    assert layer["size"] == [100, 100] and layer["stored"] == [MAX_MAP_SIZE] * 2 and layer["of"] == 6
    (frames,) = found["runs"][0]["images"][0]["frames"]
    assert len(zlib.decompress(base64.b64decode(frames[0]))) == 72 * MAX_MAP_SIZE**2


class Brightest(nn.Module):
    """Says which quadrant of the image is brightest: 0 and 1 above, 2 and 3 below."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return 9 * self.pool(x).flatten(1)  # (B, 4)


def quadrants(*bright: int) -> Tensor:
    """Images 8×8, one with each of these quadrants white; -1 for none."""
    images = torch.zeros(len(bright), 1, 8, 8)
    for image, quadrant in zip(images, bright, strict=True):
        if quadrant >= 0:
            row, column = divmod(quadrant, 2)
            image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1
    return images


def test_images_whose_prediction_changes_come_first_at_the_angle_where_it_does() -> None:
    images = quadrants(-1, 2, -1, 0)
    images[2] = 1  # all white: the same at quarter turns, but darker in corners in between
    run = opened(Brightest(), images, ("pool",))
    found = explore([run], [{"pool": 1.0}], images=4, maps=1)
    assert found.content["kind"] == "classes"
    shown = found.content["images"]
    assert {image["index"] for image in shown[:2]} == {1, 3}
    for image in shown[:2]:
        turned = [run.model(images[image["index"]][None].rot90(k, (2, 3))) for k in range(4)]
        assert image["opening"] in (18, 36, 54)  # a quarter turn, though 45° changes it too
        assert turned[image["opening"] // 18].argmax() != turned[0].argmax()
    never = next(image for image in shown if image["index"] == 0)
    assert never["opening"] is None
    assert found.note.startswith("In ") and "of 4 images the predicted class changes" in found.note


def test_with_labels_the_page_opens_where_the_first_network_is_wrong_and_the_last_right() -> None:
    class Constant(nn.Module):
        """Knows one class, and is not sure of it."""

        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.AvgPool2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(x).flatten(1) * 0 + torch.tensor([0.0, 0.0, 1.0, 0.0])

    images = quadrants(0, 1, 2, 3)
    labels = torch.tensor([0, 1, 2, 0])  # the first network is wrong about the last one as it is
    nets = [opened(net, images, ("pool",), labels=labels) for net in (Brightest(), Constant())]
    found = explore(nets, [{"pool": 1.0}] * 2, images=4, maps=1)
    first = found.content["images"][0]
    # the prediction changes for all of them, but the last network is right about this one alone
    assert first["index"] == 2 and first["label"] == 2
    assert first["opening"] in (18, 36, 54)
    predicted = [run["images"][0]["predicted"][first["opening"]] for run in found.content["runs"]]
    assert predicted[0] != 2 and predicted[1] == 2
    alone = explore(nets[:1], [{"pool": 1.0}], images=4, maps=1)
    assert all(image["opening"] is not None for image in alone.content["images"])


def test_maps_count_pixels_and_other_outputs_have_an_error() -> None:
    images = quadrants(0, 1, 2, 3)
    # bright pixels are of class 0 and dark ones of class 1, under quarter turns as well
    place = nn.Conv2d(1, 2, 1)
    seg = nn.Sequential(nn.Identity(), place)
    with torch.no_grad():
        place.weight.copy_(torch.tensor([[[[1.0]]], [[[0.0]]]]))
        place.bias.copy_(torch.tensor([0.0, 0.5]))
    found = explore([opened(seg, images, ("1",))], [{"1": 1.0}], images=2, maps=1)
    changed = found.content["runs"][0]["images"][0]["changed"]
    assert found.kind == "pixels" and all(changed[k] == 0 for k in (0, 18, 36, 54))
    assert "classes" not in found.content["images"][0]

    class Top(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :, :4].mean((1, 2, 3))  # (B,): how bright its upper half is

    net = nn.Sequential(nn.Identity(), Top())
    run = opened(net, images, ("0",))
    found = explore([run], [{"0": 1.0}], images=4, maps=1)
    y = net(images)
    for i, image in enumerate(found.content["images"]):
        turned = net(images[image["index"]][None].rot90(1, (2, 3)))
        expected = float((turned - y[image["index"]]).square() / y.var(unbiased=False))
        changed = found.content["runs"][0]["images"][i]["changed"]
        assert changed[0] == 0 and changed[18] == pytest.approx(expected)
    assert found.kind == "values" and found.note == ""
