"""The permutation of members against loops over images, feature groups and members."""

import pytest
import torch

import ien
from ien.groups.members import member_table, permute_members, regular_sizes
from tests.helpers.losses import CASES, D4, R4, loop_permute

NAMES = "rot4 rot6 rot8 flip vflip rot2xflip rot4xflip flipxrot4 rot3xflip vflipxflip rot2xrot3".split()
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", NAMES)
def test_tables_compose_as_the_elements_do(name) -> None:
    group = ien.group(name)
    matrices = group.matrices
    for size in regular_sizes(group):
        table = member_table(group, size)
        assert table.shape == (len(group), size) and table.dtype == torch.int64
        assert table[0].tolist() == list(range(size))
        for a in range(len(group)):
            assert sorted(table[a].tolist()) == list(range(size))
            for b in range(len(group)):
                product = (matrices - matrices[a] @ matrices[b]).abs().amax((1, 2)).argmin()  # a after b
                assert torch.equal(table[product], table[b][table[a]])


@pytest.mark.parametrize("name", ["rot4", "rot2", "flip", "vflip", "rot4xflip", "flipxrot4", "vflipxflip"])
def test_an_orbit_of_an_image_is_a_feature_group_that_stays(name) -> None:
    group, image = ien.group(name), torch.rand(1, 1, 5, 5)
    n = len(group)
    orbit = group.act(image.expand(n, -1, -1, -1), torch.arange(n))  # (n, 1, 5, 5): member after member
    for g in range(n):
        moved = group.act(orbit[member_table(group, n)[g]], torch.full((n,), g))
        assert torch.equal(moved, orbit)


@pytest.mark.parametrize("n", [1, 2, 4, 6, 8])
def test_rotations_shift_members_and_flips_have_one_for_each_element(n) -> None:
    assert regular_sizes(D4) == (8, 1) and regular_sizes(ien.reflection()) == (2, 1)
    assert regular_sizes(ien.rotation(2) * ien.reflection()) == (4, 1)
    assert member_table(D4, 1).tolist() == [[0]] * 8
    group = ien.rotation(n)
    assert regular_sizes(group) == tuple(k for k in range(n, 0, -1) if n % k == 0)
    for k in regular_sizes(group):
        assert member_table(group, k).tolist() == [[(m - r) % k for m in range(k)] for r in range(n)]


@pytest.mark.parametrize(("group", "spec", "mix"), CASES, ids=lambda value: str(value).replace(" ", ""))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "last"])
def test_permute_equals_a_loop_over_images_and_members(group, spec, mix, layout) -> None:
    channels = sum(size * number for size, number in mix)
    h = torch.rand(9, channels, 3, 2, dtype=torch.float64).contiguous(memory_format=layout)
    g = torch.randint(len(group), (9,))
    blocks = ien.FeatureGroups.of(spec).blocks(channels)
    result = permute_members(h, g, group, blocks)
    assert torch.equal(result, loop_permute(h, g, group, mix)) and result.stride() == h.stride()
    assert torch.equal(permute_members(h, g.to(torch.uint8), group, blocks), result)
    h.requires_grad_()
    weights = torch.rand_like(h)
    (actual,) = torch.autograd.grad((weights * permute_members(h, g, group, blocks)).sum(), h)
    (expected,) = torch.autograd.grad((weights * loop_permute(h, g, group, mix)).sum(), h)
    assert torch.equal(actual, expected)


def test_gradients_of_gradients() -> None:
    h, g = torch.rand(3, 4, 2, 2, dtype=torch.float64, requires_grad=True), torch.tensor([1, 3, 2])
    assert torch.autograd.gradgradcheck(lambda h: permute_members(h, g, R4, [(4, 4)]).square(), h)


@pytest.mark.parametrize(
    ("group", "size", "match"),
    [
        ("rot4", 3, "rot4 cannot permute the members of feature groups of size 3; use 4, 2 or 1"),
        ("rot4", 8, "of size 8; use 4, 2 or 1"),
        ("rot8", 6, "use 8, 4, 2 or 1"),
        ("rot4xflip", 16, "rot4xflip cannot permute .* of size 16; use 8 or 1"),
        ("rot4xflip", 4, "feature groups of size 4 are ambiguous under rot4xflip; use 8 or 1"),
        ("rot1", 2, "use 1$"),
    ],
)
def test_other_sizes_are_errors_that_name_those_that_do(group, size, match) -> None:
    with pytest.raises(ValueError, match=match):
        member_table(ien.group(group), size)
