"""Group actions inside torch.compile(fullgraph=True) and torch.func: the numbers of plain calls."""

import pytest
import torch

import ien

COMPILED = ["rot4xflip", "rot8", "scale0.7"]  # compiling takes seconds each
GROUPS = ["rot4", "rot4xflip", "flip", "rot8", "scale0.7", "rot4xscale0.8", "rot6xflip"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def images(group: ien.Group, size: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(7, 3, size, size)
    return x, torch.randint(len(group), (7,))


def compiled(function):
    """One graph, or an error; without the compiler of kernels, which rounds differently."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    ("method", "inverse"), [("act", False), ("act", True), ("act_on_features", False)], ids=str
)
@pytest.mark.parametrize("name", COMPILED)
def test_an_action_compiles_to_one_graph(name, method, inverse) -> None:
    group = ien.group(name)
    act = getattr(group, method)
    one_graph = compiled(lambda x, g: act(x, g, inverse))
    for _ in range(2):  # the graph holds for other elements
        x, g = images(group)
        assert torch.equal(one_graph(x, g), act(x, g, inverse))
    x, g = images(group, 12)
    assert torch.equal(one_graph(x, g), act(x, g, inverse))


@pytest.mark.parametrize("name", COMPILED)
def test_gradients_of_a_compiled_action_are_those_of_a_plain_one(name) -> None:
    group = ien.group(name)
    x, g = images(group)
    weight = torch.randn_like(x)
    slopes = []
    for act in (group.act, compiled(lambda x, g: group.act(x, g))):
        leaf = x.clone().requires_grad_()
        (act(leaf, g) * weight).sum().backward()
        slopes.append(leaf.grad)
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("name", GROUPS)
def test_vmap_over_images_and_elements_equals_a_loop(name, mode) -> None:
    group = ien.group(name)
    pairs = [images(group) for _ in range(3)]
    x, g = torch.stack([x for x, _ in pairs]), torch.stack([g for _, g in pairs])
    found = torch.func.vmap(lambda x, g: group.act(x, g, mode=mode))(x, g)
    expected = [group.act(*pair, mode=mode) for pair in pairs]
    assert torch.equal(found, torch.stack(expected))
    found = torch.func.vmap(lambda x: group.act(x, g[0]))(x)
    assert torch.equal(found, torch.stack([group.act(one, g[0]) for one, _ in pairs]))


def test_your_own_actions_are_traced_too() -> None:
    group = ien.custom("negative", {"negate": torch.neg}, "identity") * ien.rotation(4)
    x, g = images(group)
    assert torch.equal(compiled(lambda x, g: group.act(x, g))(x, g), group.act(x, g))
    assert torch.equal(torch.func.vmap(group.act)(x[None], g[None])[0], group.act(x, g))


@pytest.mark.parametrize(
    "options",
    [{}, {"normalize": True}, {"action": "regular", "feature_groups": 8}],
    ids=["pooled", "normalize", "regular"],
)
@pytest.mark.parametrize("name", ["rot8"])
def test_the_loss_of_a_layer_compiles_to_one_graph_and_can_be_mapped(name, options) -> None:
    group = ien.group(name)
    h, h_g, g = torch.randn(5, 16, 9, 9), torch.randn(5, 16, 9, 9), torch.randint(8, (5,))

    def loss(h, h_g, g):
        return ien.equivariance_loss(h, h_g, group, g, **options)

    expected = loss(h, h_g, g)
    torch.testing.assert_close(compiled(loss)(h, h_g, g), expected)
    both = torch.func.vmap(loss)(torch.stack([h, h_g]), torch.stack([h_g, h]), torch.stack([g, g.flip(0)]))
    torch.testing.assert_close(both, torch.stack([expected, loss(h_g, h, g.flip(0))]))


def test_pooling_compiles_to_one_graph_and_can_be_mapped() -> None:
    h = torch.randn(2, 3, 11, 5, 5)
    expected = torch.stack([ien.group_pool(one, "4-2-1") for one in h])
    assert torch.equal(torch.func.vmap(lambda h: ien.group_pool(h, "4-2-1"))(h), expected)
    leaf = h[0].clone().requires_grad_()
    pooled = compiled(lambda h: ien.group_pool(h, "4-2-1"))(leaf)
    assert torch.equal(pooled, expected[0])
    pooled.sum().backward()
    assert leaf.grad.sum() == pooled.numel()


def test_what_cannot_be_rotated_is_an_error_in_a_trace_too() -> None:
    with pytest.raises(ValueError, match=r"quarter turns need square maps .*got 4×5"):
        torch.func.vmap(ien.rotation(4).act)(torch.rand(1, 2, 3, 4, 5), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"needs floating point, not torch.int64: use x.float\(\)"):
        torch.func.vmap(ien.rotation(8).act)(
            torch.ones(1, 2, 3, 5, 5, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)
        )


@pytest.mark.parametrize(
    "given", [[[1.0]], None, torch.rand(2, 1, 4, 4).numpy()], ids=["list", "none", "numpy"]
)
def test_only_tensors_are_acted_on(given) -> None:
    g = torch.zeros(2, dtype=torch.int64)
    for call in (
        lambda: ien.rotation(4).act(given, g),
        lambda: ien.group_pool(given, 1),
        lambda: ien.equivariance_loss(given, given, "rot4", g),
        lambda: ien.EquivarianceLoss("rot4", ["0"], 1)(torch.nn.Identity(), given),
    ):
        with pytest.raises(TypeError, match=r"tensor.*; got (a list|None|a numpy array \(torch\.from_numpy)"):
            call()
