"""The kernels that commute, in closed form: against e2cnn's, the commuting kernels of ties, and rotations."""

import pytest
import torch

import ien
from ien.baselines.steerable_basis import E2CNN_DEFAULT, E2CNN_WIDE, Functions, steerable_basis
from ien.groups.members import member_table
from ien.tying.commuting import Kernels, commuting
from ien.tying.harmonics import orthonormal
from tests.helpers.e2cnn import expected_basis

GROUPS = [
    (2, False),
    (3, False),
    (4, False),
    (6, False),
    (8, False),
    (2, True),
    (3, True),
    (4, True),
    (8, True),
]


@pytest.fixture
def double():
    """e2cnn samples in torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("rotations", "flips"), GROUPS)
@pytest.mark.parametrize("size", [3, 5, 7])
@pytest.mark.parametrize("from_image", [True, False])
@pytest.mark.usefixtures("double")
def test_the_basis_is_that_of_e2cnn_in_order_sign_and_norm(rotations, flips, size, from_image) -> None:
    for functions in (E2CNN_DEFAULT, E2CNN_WIDE):
        found, _ = steerable_basis(rotations, flips, size, from_image, functions)
        expected = expected_basis(rotations, flips, size, from_image, functions)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("from_image", [True, False])
@pytest.mark.usefixtures("double")
def test_the_kernels_of_an_alexnet_are_those_of_e2cnn(from_image) -> None:
    found, _ = steerable_basis(4, False, 11, from_image)
    torch.testing.assert_close(
        found, expected_basis(4, False, 11, from_image, E2CNN_DEFAULT), atol=1e-14, rtol=0
    )


@pytest.mark.usefixtures("double")
def test_single_pixels_between_fields_are_those_of_e2cnn() -> None:
    for rotations, flips in GROUPS:
        found, _ = steerable_basis(rotations, flips, 1, from_image=False)
        expected = expected_basis(rotations, flips, 1, False, E2CNN_DEFAULT)
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


def rows_of(kernels: Kernels) -> torch.Tensor:
    """The kernels that follow from each number alone, (numbers, places)."""
    rows = torch.eye(kernels.num_numbers, dtype=torch.float64)
    for matrix in kernels.expand:
        rows = (rows.unflatten(1, (-1, len(matrix))) @ matrix).flatten(1)
    return rows[:, kernels.copies]


@pytest.mark.parametrize(("group", "rotations", "flips"), [("rot8", 8, False), ("rot6", 6, False)])
@pytest.mark.parametrize("size", [1, 3, 5, 7])
@pytest.mark.parametrize("from_image", [True, False])
def test_ties_and_the_basis_span_the_same_kernels(group, rotations, flips, size, from_image) -> None:
    parsed = ien.group(group)
    inner = 1 if from_image else len(parsed)
    basis, _ = steerable_basis(rotations, flips, size, from_image)
    ours = orthonormal(basis.flatten(1))
    assert len(ours) == len(basis)  # it is a basis: nothing is said twice
    if size == 1 and from_image:
        theirs = orthonormal(torch.ones(1, len(parsed), dtype=torch.float64))
    else:
        theirs = orthonormal(rows_of(commuting(parsed, len(parsed), inner, size, size, smooth=True)))
    torch.testing.assert_close(ours.T @ ours, theirs.T @ theirs)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("from_image", [True, False])
def test_every_kernel_commutes_with_quarter_turns_and_flips(size, flips, from_image) -> None:
    group = ien.group("rot4xflip" if flips else "rot4")
    basis, _ = steerable_basis(4, flips, size, from_image)
    after = member_table(group, len(group))
    before = torch.zeros(len(group), 1, dtype=torch.int64) if from_image else after
    for i in range(len(group)):
        rotated = group.act(basis.flatten(1, 2), torch.full((len(basis),), i)).view_as(basis)
        torch.testing.assert_close(rotated[:, after[i]][:, :, before[i]], basis)


def test_deviations_make_outputs_as_loud_as_white_inputs() -> None:
    """Var Σ_b w_b κ_b x over the members of a field is 1 for white noise x, however large the kernel."""
    for rotations, flips, size in [(4, False, 3), (8, False, 5), (4, True, 5), (8, False, 7)]:
        basis, deviations = steerable_basis(rotations, flips, size, from_image=False)
        norms = basis.flatten(1).square().sum(1)  # of the kernel of each weight
        members = basis.shape[1]
        loudness = float((deviations.square() * norms).sum() / members)
        assert loudness == pytest.approx(1.0)


def test_a_basis_made_in_inference_mode_can_be_trained_with() -> None:
    steerable_basis.cache_clear()
    with torch.inference_mode():
        steerable_basis(4, False, 3, True)
    layer = ien.baselines.steerable_layers.SteerableConv2d(1, 1, 3, "rot4", from_image=True)
    layer(torch.rand(1, 1, 5, 5)).sum().backward()
    assert layer.weight.grad.abs().max() > 0


def test_functions_limit_rings() -> None:
    assert Functions(cutoff=2.0, sigma=0.5).limits(3.0, outermost=True) == (0.5, 6)
    assert E2CNN_DEFAULT.limits(0.0, outermost=False)[1] == 0
