"""Targets follow their images: found again by drawing them, and against loops and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import tensor

from ien import Group, custom, rotation, scale
from tests.helpers.groups import D4, FLIP, GROUPS, VFLIP, assert_near, assert_same, each

EXACT = [rotation(4), D4, FLIP, VFLIP, rotation(2) * FLIP]
MOVING = [rotation(8), rotation(12) * FLIP, scale([0.7, 1.3]), rotation(8) * scale([0.5]) * VFLIP]
SIZE = 41


def every(moving: Group) -> torch.Tensor:
    return torch.arange(len(moving))


def bump(x: float, y: float, size: int = SIZE) -> torch.Tensor:
    """A smooth bright dot (1, 1, size, size) whose centre of mass is (x, y)."""
    columns = torch.arange(size, dtype=torch.float64)
    rows = columns[:, None]
    return (-((columns - x) ** 2 + (rows - y) ** 2) / 8).exp()[None, None]


def centre_of_mass(images: torch.Tensor) -> torch.Tensor:
    """(x, y) of each image (B, 1, H, W)."""
    columns = torch.arange(images.shape[-1], dtype=torch.float64)
    rows = torch.arange(images.shape[-2], dtype=torch.float64)
    mass = images.sum((1, 2, 3))
    x = (images.sum((1, 2)) * columns).sum(-1) / mass
    y = (images.sum((1, 3)) * rows).sum(-1) / mass
    return torch.stack([x, y], -1)  # (B, 2)


@each("exact", EXACT)
@each("dtype", [torch.int64, torch.uint8, torch.bool, torch.float32])
@each("shape", [(6, 6), (3, 5, 5)])
def test_exact_elements_move_masks_bit_for_bit_as_they_move_images(exact, dtype, shape):
    g = torch.randperm(3 * len(exact)) % len(exact)
    masks = torch.randint(2 if dtype == torch.bool else 250, (len(g), *shape)).to(dtype)
    maps = masks.view(len(g), -1, *shape[-2:])
    moved = exact.act_on_masks(masks, g)
    assert_same(moved, exact.act(maps, g).view(masks.shape))
    assert_same(exact.act_on_masks(moved, g, inverse=True), masks)


@each("moving", MOVING)
@each("size", [(9, 9), (8, 8), (6, 9)])
def test_masks_equal_a_loop_over_the_nearest_pixels_and_ignore_what_is_outside(moving, size):
    height, width = size
    if height != width:
        moving = Group(
            "upright", tuple(e for e, exact in zip(moving.elements, moving.exact, strict=True) if not exact)
        )
    masks = torch.randint(200, (len(moving), height, width))
    moved = moving.act_on_masks(masks, every(moving), ignore=-7)
    for i, matrix in enumerate(moving.matrices.numpy()):
        inverse = np.linalg.inv(matrix)
        for row, column in np.ndindex(height, width):
            x, y = inverse @ (column - (width - 1) / 2, (height - 1) / 2 - row)
            at_row, at_column = (height - 1) / 2 - y, (width - 1) / 2 + x
            near = set()
            for r in {math.ceil(at_row - 0.5 - 1e-9), math.floor(at_row + 0.5 + 1e-9)}:
                for c in {math.ceil(at_column - 0.5 - 1e-9), math.floor(at_column + 0.5 + 1e-9)}:
                    if 0 <= r < height and 0 <= c < width:
                        near.add(int(masks[i, r, c]))
            assert int(moved[i, row, column]) in (near or {-7})  # several in the middle between pixels


@each("moving", MOVING)
def test_masks_and_images_agree_wherever_the_image_is_known(moving):
    # a disc off the centre: the mask of the moved image is the moved mask, except along its edge
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    disc = ((rows - 14) ** 2 + (columns - 24) ** 2 < 60).expand(len(moving), -1, -1)
    g = every(moving)
    moved = moving.act_on_masks(disc.long(), g)
    known = moved != 255
    seen = moving.act(disc[:, None].double(), g)[:, 0]
    assert known.double().mean() > 0.5
    assert ((seen > 0.99) & known & (moved != 1)).sum() == 0
    assert ((seen < 0.01) & known & (moved != 0)).sum() == 0


@each("moving", [*EXACT, *MOVING])
def test_a_bright_dot_is_found_where_its_point_went(moving):
    g = every(moving)
    dots = bump(25, 12).expand(len(moving), -1, -1, -1)
    points = tensor([25.0, 12.0], dtype=torch.float64).expand(len(moving), 2)
    moved = moving.act_on_points(points, g, (SIZE, SIZE))
    assert_near(moved, centre_of_mass(moving.act(dots, g)), 0.02)
    assert_near(moving.act_on_points(moved, g, (SIZE, SIZE), inverse=True), points, 1e-12)


@each("exact", EXACT)
def test_one_pixel_is_found_exactly_where_its_point_went(exact):
    x = torch.zeros(len(exact), 1, 7, 7)
    x[:, :, 5, 1] = 1
    points = tensor([1.0, 5.0]).expand(len(exact), 2)
    moved = exact.act_on_points(points, every(exact), (7, 7))
    found = exact.act(x, every(exact)).nonzero()[:, [3, 2]].float()  # column, row
    assert_same(moved, found)


@each("exact", EXACT)
def test_a_filled_box_is_found_exactly_where_its_box_went(exact):
    x = torch.zeros(len(exact), 1, 9, 9)
    x[:, :, 1:4, 2:8] = 1
    boxes = tensor([2.0, 1, 8, 4]).expand(len(exact), 3, 4)  # three times, as boxes (B, N, 4)
    moved = exact.act_on_boxes(boxes, every(exact), (9, 9))
    for image, (box, *_) in zip(exact.act(x, every(exact))[:, 0], moved.int().tolist(), strict=True):
        x1, y1, x2, y2 = box
        assert image.sum() == 18 and image[y1:y2, x1:x2].sum() == (x2 - x1) * (y2 - y1) == 18
    assert_same(exact.act_on_boxes(moved, every(exact), (9, 9), inverse=True), boxes)


@each("moving", MOVING)
def test_other_boxes_are_the_hull_of_what_they_hold(moving):
    x1, y1, x2, y2 = 12.0, 16.0, 26.0, 22.0
    boxes = tensor([x1, y1, x2, y2], dtype=torch.float64).expand(len(moving), 4)
    moved = moving.act_on_boxes(boxes, every(moving), (SIZE, SIZE))
    along = torch.linspace(0, 1, 15, dtype=torch.float64)
    xs, ys = torch.meshgrid(x1 + along * (x2 - x1), y1 + along * (y2 - y1), indexing="xy")
    inside = torch.stack([xs, ys], -1).flatten(0, 1) - 0.5  # edges of pixels -> their centres
    points = moving.act_on_points(inside.expand(len(moving), -1, 2), every(moving), (SIZE, SIZE)) + 0.5
    assert_near(moved, torch.cat([points.amin(1), points.amax(1)], -1), 1e-10)


@each("moving", [*GROUPS, *MOVING])
def test_vectors_are_differences_of_points_and_angles_their_directions(moving):
    g = every(moving).repeat(2)
    start, end = torch.randn(2, len(g), 5, 2, dtype=torch.float64)
    size = (30, 30)
    difference = moving.act_on_points(end, g, size) - moving.act_on_points(start, g, size)
    vectors = moving.act_on_vectors(end - start, g)
    assert_near(vectors, difference, 1e-10)
    assert_near(moving.act_on_vectors(vectors, g, inverse=True), end - start, 1e-12)

    def degrees(v):
        return torch.rad2deg(torch.atan2(-v[..., 1], v[..., 0]))  # up is positive

    angles = moving.act_on_angles(degrees(end - start), g)
    assert (angles >= 0).all() and (angles <= 360).all()
    assert_near(torch.deg2rad(angles - degrees(vectors)).cos(), torch.ones(len(g), 5).double(), 1e-12)
    back = moving.act_on_angles(angles, g, inverse=True)
    assert_near(torch.deg2rad(back - degrees(end - start)).cos(), torch.ones(len(g), 5).double(), 1e-12)


def test_a_quarter_turn_takes_right_to_up_and_a_flip_swaps_left_and_right():
    right, g = tensor([[1.0, 0.0]] * 2), tensor([2, 1])  # elements of D4: 90°, flip
    assert D4.act_on_vectors(right, g).tolist() == [[0, -1], [-1, 0]]
    assert D4.act_on_angles(tensor([0.0, 30.0]), g).tolist() == [90, 150]
    assert rotation(8).act_on_angles(tensor([-10.0]), tensor([1])).tolist() == [35]


def test_gradients_flow_back_through_points_boxes_and_vectors():
    points = torch.rand(2, 3, 2, dtype=torch.float64, requires_grad=True)
    g = tensor([1, 3])
    assert torch.autograd.gradcheck(lambda p: rotation(8).act_on_points(p, g, (9, 9)), points)
    assert torch.autograd.gradcheck(lambda p: rotation(8).act_on_vectors(p, g), points)
    boxes = tensor([[1.0, 2, 5, 7], [0, 3, 4, 4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b: rotation(8).act_on_boxes(b, g, (9, 9)), boxes)


def test_a_batch_of_none_stays_one():
    g = torch.zeros(0, dtype=torch.int64)
    assert rotation(8).act_on_masks(torch.zeros(0, 5, 5).long(), g).shape == (0, 5, 5)
    assert rotation(8).act_on_boxes(torch.zeros(0, 3, 4), g, (5, 5)).shape == (0, 3, 4)
    assert rotation(8).act_on_points(torch.zeros(2, 0, 2), tensor([1, 2]), (5, 5)).shape == (2, 0, 2)
    assert rotation(8).act_on_angles(torch.zeros(0), g).shape == (0,)


ONE = tensor([1])
NEGATIVE = custom("negative", {"invert": lambda x: 1 - x}, "identity")
MISTAKES = [
    (lambda: rotation(4).act_on_masks(torch.zeros(5, 5), ONE), r"\(B, H, W\).*got \(5, 5\)"),
    (lambda: rotation(8).act_on_masks(torch.zeros(1, 5, 5).bool(), ONE), "bool cannot hold ignore=255.*long"),
    (
        lambda: rotation(8).act_on_masks(torch.zeros(1, 5, 5).byte(), ONE, -100),
        "uint8 cannot hold ignore=-100",
    ),
    (lambda: rotation(8).act_on_masks(torch.zeros(1, 5, 5).long(), ONE, math.nan), "cannot hold ignore=nan"),
    (lambda: rotation(4).act_on_masks(torch.zeros(2, 5, 5), ONE), r"integer tensor \(2,\)"),
    (lambda: rotation(4).act_on_masks(torch.zeros(1, 4, 6), ONE), "'90°' swaps the sides.*4×6"),
    (lambda: rotation(4).act_on_points(torch.zeros(1, 2), ONE, (4, 6)), "'90°' swaps the sides.*4×6"),
    (
        lambda: rotation(4).act_on_points(torch.zeros(1, 3), ONE, (4, 4)),
        r"\(B, …, 2\), the last for x, y; got",
    ),
    (lambda: rotation(4).act_on_points(torch.zeros(2), ONE, (4, 4)), r"got \(2,\)"),
    (lambda: rotation(4).act_on_boxes(torch.zeros(1, 4).long(), ONE, (4, 4)), r"int64: use boxes\.float\(\)"),
    (lambda: rotation(4).act_on_vectors(torch.zeros(1, 3), ONE), "the last for dx, dy"),
    (lambda: rotation(4).act_on_angles(torch.tensor(3.0), ONE), r"an entry for each image; got \(\)"),
    (lambda: rotation(4).act_on_angles(torch.zeros(1).long(), ONE), r"use angles\.float\(\)"),
    (
        lambda: NEGATIVE.act_on_angles(torch.zeros(1), ONE),
        "'invert' of negative is your own function.*not known",
    ),
]


@each("make, fragment", MISTAKES)
def test_wrong_targets_get_an_error_that_helps(make, fragment):
    with pytest.raises(ValueError, match=fragment):
        make()


def test_half_precision_and_scalings_of_vectors():
    halved = scale([0.5]).act_on_vectors(tensor([[3.0, 4.0]]).half(), ONE)
    assert halved.dtype == torch.float16 and math.dist((0, 0), halved[0].tolist()) == 2.5
