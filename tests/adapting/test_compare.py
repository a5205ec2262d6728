"""compare: the table is a loop over images and elements, and says what cannot be compared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ien.adapting.average import GroupAverage
from ien.adapting.canonicalize import Canonicalize
from ien.adapting.compare import compare, try_under_all
from ien.groups.families import group
from tests.adapting.test_adapt import images, sided


class Detector(nn.Module):
    """A box and a direction from the pixels, neither of them equivariant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.numbers = nn.Linear(3 * 12 * 12, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        numbers = self.numbers(x.flatten(1))
        corner, sides = 12 * numbers[:, :2], 12 * numbers[:, 2:4].abs()
        return {"box": torch.cat([corner, corner + sides], 1), "direction": 360 * numbers[:, 4]}


def test_the_table_is_a_loop_over_images_and_elements() -> None:
    net = sided()
    x, labels = images(30), torch.randint(4, (30,), generator=torch.Generator().manual_seed(1))
    averaged = GroupAverage(net, "rot4")
    table = compare({"original": net, "averaged": averaged}, x, "rot4", labels, batch_size=7)
    original = table.versions["original"]
    alike = 0
    right = [0, 0, 0, 0]
    for i in range(30):
        classes = [int(net(x[i : i + 1].rot90(quarter, (2, 3))).argmax()) for quarter in range(4)]
        alike += len(set(classes)) == 1
        for quarter in range(4):
            right[quarter] += classes[quarter] == int(labels[i])
    assert original.all_agree == pytest.approx(alike / 30)
    assert list(original.accuracy.values()) == pytest.approx([count / 30 for count in right])
    assert original.like_original == 1.0 and original.cost == 1.0
    assert table.versions["averaged"].all_agree == 1.0
    assert "same answer under all" in str(table) and "averaged" in str(table)


def test_maps_are_compared_pixel_by_pixel() -> None:
    net = nn.Conv2d(3, 2, 3, padding=1)
    x = images(10)
    masks = torch.zeros(10, 12, 12, dtype=torch.int64)
    averaged = GroupAverage(net, "rot4", outputs="map")
    table = compare({"original": net, "averaged": averaged}, x, "rot4", masks, outputs="map")
    turned = net(x.rot90(1, (2, 3))).argmax(1).rot90(-1, (1, 2))
    agreement = (turned == net(x).argmax(1)).double().mean()
    assert table.versions["original"].agreement["90°"] == pytest.approx(float(agreement))
    assert table.versions["averaged"].all_agree > 0.999


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(TypeError, match=r'a dict by name, such as {"original": model}; got a Linear'):
        compare(nn.Linear(2, 2), torch.rand(2, 3, 8, 8), "rot4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is nothing to compare"):
        compare({}, images(), "rot4")
    with pytest.raises(
        ValueError, match=r"should return scores \(B, classes\); .* returns \(1, 4, 10, 10\): .*--outputs map"
    ):
        compare({"original": nn.Conv2d(3, 4, 3)}, images(), "rot4")
    with pytest.raises(
        ValueError, match=r'maps \(B, classes, n, n\); .*: say what that is, outputs="scores"'
    ):
        compare({"original": sided()}, images(), "rot4", outputs="map")
    with pytest.raises(ValueError, match=r"labels must have the shape \(64,\); got \(3,\)"):
        compare({"original": sided()}, images(), "rot4", torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda x: {"boxes": x, "maps": x}, r"a dict with boxes, maps: .*outputs={'boxes': .scores., …}"),
        (lambda x: (x, x), "a tuple with 2 tensors: wrap it"),
        (lambda x: "cat", "a str without a tensor: wrap it"),
    ],
)
def test_answers_that_are_not_one_tensor_are_told_with_what_to_do(returned, told) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return returned(x)

    with pytest.raises(ValueError, match=told):
        compare({"original": Net()}, images(), "rot4")
    with pytest.raises(ValueError, match=r"without fit\(images\) the model must return scores .* call fit"):
        Canonicalize(Net(), "rot4")(images())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_answers_that_are_no_numbers_have_no_table(value: float) -> None:
    broken = sided()
    with torch.no_grad():
        broken[5].weight[0, 0] = value
    for model in (broken, GroupAverage(broken, "rot4")):
        with pytest.raises(ValueError, match="'broken' answers with NaN or infinity: look at its weights"):
            compare({"original": sided(), "broken": model}, images(), "rot4")
    with pytest.raises(ValueError, match="'broken' answers with NaN or infinity"):
        compare({"broken": broken}, images(), "rot4", outputs="invariant")
    with pytest.raises(ValueError, match="'original' answers with NaN or infinity"):
        try_under_all(broken, images(2), group("rot4"), "scores")


def test_a_class_that_is_ruled_out_is_no_broken_answer() -> None:
    class RuledOut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            scores = x.mean((2, 3))  # (B, 3)
            return scores.masked_fill(torch.tensor([False, True, False]), -torch.inf)

    assert compare({"it": RuledOut()}, images(), "rot4").versions["it"].all_agree == 1.0


def test_boxes_and_angles_are_compared_by_their_errors() -> None:
    net, x = Detector(), images(10)
    kinds = {"box": "boxes", "direction": "angles"}
    upright = Canonicalize(net, "rot4", kinds)
    upright.network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    found = compare({"original": net, "other": upright}, x, "rot4", outputs=kinds, batch_size=4)
    before, after = net(x), net(x.rot90(1, (2, 3)))
    x1, y1, x2, y2 = after["box"].unbind(1)
    back = torch.stack([12 - y2, x1, 12 - y1, x2], 1)  # a quarter turn clockwise
    expected = (back - before["box"]).square().mean() / before["box"].var(unbiased=False)
    version = found.versions["original"]
    assert version.errors["box"]["90°"] == pytest.approx(float(expected.detach()), rel=1e-4)
    radians = torch.stack([after["direction"] - 90, before["direction"]]).deg2rad()
    points = torch.stack([radians.cos(), radians.sin()], -1)  # (2, B, 2)
    expected = (points[0] - points[1]).square().mean() / points[1].var(unbiased=False)
    assert version.errors["direction"]["90°"] == pytest.approx(float(expected.detach()), rel=1e-4)
    assert version.errors["box"]["identity"] == 0 and version.differences == {"box": 0.0, "direction": 0.0}
    assert found.versions["other"].differences["box"] > 0
    text = str(found)
    assert "error of box at 90°" in text and "difference of direction from the original, upright" in text
    assert text.startswith("10 images under rot4") and text.endswith("0 is equivariant, 2 or more unrelated")


def test_a_map_of_one_channel_is_compared_by_its_numbers() -> None:
    net, x = nn.Conv2d(3, 1, 3, padding=1), images(6)
    averaged = GroupAverage(net, "rot4", outputs="map")
    found = compare({"original": net, "averaged": averaged}, x, "rot4", outputs="map")
    assert found.versions["original"].errors[""]["90°"] > 1e-3  # the largest of one channel never changes
    assert found.versions["averaged"].errors[""]["90°"] < 1e-9
    with pytest.raises(ValueError, match="labels are for models that name classes"):
        compare({"original": net}, x, "rot4", torch.zeros(6, 12, 12), outputs="map")


def test_one_class_is_no_answer_that_could_change() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 1))
    with pytest.raises(ValueError, match=r"should return scores \(B, classes\); .* returns \(1, 1\)"):
        compare({"original": net}, images(), "rot4")
    with pytest.raises(ValueError, match=r"two classes or more, with B = 2; the model returns \(2, 1\)"):
        GroupAverage(net, "rot4")(images(2))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_labels_of_no_class_are_refused(wrong: int) -> None:
    labels = torch.zeros(64, dtype=torch.int64)
    labels[3] = wrong
    with pytest.raises(ValueError, match=f"labels name class {wrong}, but .* 4 scores, for classes 0 to 3"):
        compare({"original": sided()}, images(), "rot4", labels)


def test_the_table_is_shown_in_notebooks_and_counts_one_image() -> None:
    found = compare({"<it>": sided()}, images(1), "rot4")
    assert str(found).startswith("1 image under rot4\n")
    assert repr(found) == "<Comparison of <it> under rot4, 1 image>"
    page = found._repr_html_()
    assert page.startswith("<div><p>1 image under rot4</p>\n<table>") and "<th>&lt;it&gt;</th>" in page
    assert page.count("<tr>") == len(found.rows())
