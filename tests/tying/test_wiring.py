"""Which layers feed which, and the feature groups that follow, on small models of all kinds."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.loss.modules import hooked, walk
from ien.tying.projection import VECTOR
from ien.tying.wiring import Wiring, choose
from tests.helpers.tied import Net, conv, residual

R4 = ien.rotation(4)
AUTO = {"": None}


def wired(net: nn.Module, x: Tensor) -> Wiring:
    """How a model is wired, with the words that each of its modules has read, by name."""
    wiring, read = Wiring(), {}

    def enter(name: str, module: nn.Module, h: Tensor) -> None:
        wiring.enter(name, module, h)
        read.setdefault(name, []).extend(wiring.words.get(h, []))

    modules = {name: module for name, module, _ in walk(net.eval())}
    with torch.no_grad(), wiring, hooked(modules, enter, wiring.leave):
        wiring.end(net(wiring.start(x)), len(x))
    wiring.read = read
    return wiring


def names(wiring: Wiring, layer: str) -> set[str | None]:
    """The layers that another one reads, with all that share their spaces."""
    found = set()
    for word in wiring.read[layer]:
        for source, _ in word:
            found |= wiring.spaces[source]
    return found


def sizes(net: nn.Module, x: Tensor, specs=AUTO, group=R4, outputs: str = "scalar") -> dict[str, int]:
    """The size of the feature groups of each layer, which all have one."""
    chosen = choose(wired(net, x), group, specs, outputs)
    return {name: size for name, ((size, _),) in chosen.items()}


def spec(**by_name):
    return {name.replace("rest", ""): ien.FeatureGroups.of(each) for name, each in by_name.items()}


def excited(**parts) -> nn.Module:
    """Squeeze-and-excitation with linear layers, between two convolutions."""

    def forward(net, x):
        h = net.first(x)
        gates = net.excite(F.relu(net.squeeze(h.mean((2, 3))))).sigmoid()
        return net.last(h * gates[:, :, None, None])

    layers = {
        "first": conv(3, 16),
        "squeeze": nn.Linear(16, 8),
        "excite": nn.Linear(8, 16),
        "last": conv(16, 8),
    }
    return Net(forward, **{**layers, **parts})


def unet() -> nn.Module:
    def forward(net, x):
        side = net.side(x)
        low = F.max_pool2d(net.down(side), 2)
        return net.head(net.mix(torch.cat([x, net.up(low), side], 1)))

    return Net(
        forward,
        side=conv(3, 8),
        down=conv(8, 16),
        up=nn.ConvTranspose2d(16, 8, 2, stride=2),
        mix=conv(19, 8),
        head=conv(8, 4, 1),
    )


X = torch.rand(2, 3, 8, 8)


def test_sources_are_found_through_additions_norms_and_writes_in_place() -> None:
    net = residual().requires_grad_(False)
    wiring = wired(net, X)
    assert names(wiring, "stem") == {None} and names(wiring, "b") == {"a"}
    assert names(wiring, "norm") == names(wiring, "head") == {"b", "short"}
    assert wiring.leaving == {"head"} and wiring.channels["short"] == 16
    in_place = nn.Sequential(nn.ReLU(inplace=True), conv(3, 4), nn.ReLU(inplace=True), conv(4, 4))
    before = X.clone()
    assert names(wired(in_place, X), "3") == {"1"} and torch.equal(X, before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_gates_meet_what_they_multiply_and_parts_of_concatenations_are_kept_apart() -> None:
    assert names(wired(excited(), X), "last") == {"first", "excite"}
    wiring = wired(unet(), X)
    assert wiring.read["mix"] == [((None, 3), ("up", 8), ("side", 8))]
    assert len(wiring.spaces["side"]) == 1
    assert names(wiring, "down") == {"side"} and names(wiring, "up") == {"down"}


def test_spreads_are_variances_without_the_bias() -> None:
    net = nn.Sequential(conv(3, 8), nn.Flatten(), nn.Linear(8 * 64, 5))
    nn.init.normal_(net[0].bias, 0, 100)
    spreads = wired(net, X).spreads
    bare = F.conv2d(X, net[0].weight.detach(), padding=1)
    assert spreads["0"] == pytest.approx(float(bare.var(unbiased=False)), rel=1e-3)
    vectors = F.linear(net[:2](X), net[2].weight).detach()
    assert spreads["2"] == pytest.approx(float(vectors.var(unbiased=False)), rel=1e-3)


def anchors(net, x):
    scores = net.head(net.body(x))  # (B, 2 * 4, H, W)
    return scores.unflatten(1, (2, 4)).permute(0, 3, 4, 1, 2).flatten(1, 3)  # (B, places, 4)


LEAVING = {
    "scores": (lambda net, x: net.head(net.body(x)), {"head"}),
    "pooled": (lambda net, x: net.head(net.body(x)).mean((2, 3)), {"head"}),
    "resized": (lambda net, x: F.interpolate(net.head(net.body(x)), scale_factor=2), {"head"}),
    "channels last": (lambda net, x: net.head(net.body(x)).movedim(1, -1), {"head"}),
    "both": (lambda net, x: {"a": [net.body(x)], "b": net.head(net.body(x))}, {"head", "body"}),
    "sum": (lambda net, x: net.head(net.body(x)) + net.body(x), {"head", "body"}),
    "group pool": (lambda net, x: ien.group_pool(net.head(net.body(x)), 4), set()),
    "anchors": (anchors, {"head"}),
    "places": (lambda net, x: net.head(net.body(x)).argmax(1), set()),
}


@pytest.mark.parametrize("name", LEAVING)
def test_layers_whose_channels_are_returned_leave_the_model(name) -> None:
    forward, leaving = LEAVING[name]
    net = Net(forward, body=conv(3, 8), head=conv(8, 8))
    assert wired(net, X).leaving == leaving
    expected = {layer: 1 if layer in leaving else 4 for layer in ("body", "head")}
    assert sizes(net, X) == expected


def test_only_a_name_gives_what_leaves_the_model_feature_groups() -> None:
    assert sizes(residual(), X) == {"stem": 4, "a": 4, "b": 4, "short": 4, "head": 1}
    assert sizes(residual(), X, spec(rest=4))["head"] == 1
    assert sizes(residual(), X, {"": None, **spec(head=4)})["head"] == 4
    assert sizes(residual(), X, {"": ien.FeatureGroups.of(2), "head": None})["head"] == 4
    alone = conv(3, 8)
    assert sizes(alone, X) == {"": 1} and sizes(alone, X, spec(rest=4)) == {"": 4}


def test_what_is_added_to_what_leaves_is_single_too() -> None:
    net = Net(
        lambda net, x: (net.a(x), net.head(net.a(x) + net.b(x))), a=conv(3, 8), b=conv(3, 8), head=conv(8, 8)
    )
    for specs in (AUTO, spec(rest=4)):
        assert sizes(net, X, specs) == {"a": 1, "b": 1, "head": 1}


def test_channels_that_do_not_divide_are_single() -> None:
    net = excited(squeeze=nn.Linear(16, 6), excite=nn.Linear(6, 16))
    assert sizes(net, X) == {"first": 4, "squeeze": 1, "excite": 4, "last": 1}
    assert sizes(excited(), X) == {"first": 4, "squeeze": 4, "excite": 4, "last": 1}
    assert sizes(excited(), X, group=ien.rotation(16))["squeeze"] == 1


def test_all_layers_that_do_not_divide_are_listed_at_once() -> None:
    net = nn.Sequential(
        conv(3, 6), conv(6, 10), conv(10, 8), nn.Flatten(), nn.Linear(512, 6), nn.Linear(6, 3)
    )
    with pytest.raises(
        ValueError, match=r"'0' has 6 for 4 \(nearest: 4\); '1' has 10 .*auto.*\"\": …, '0': 1"
    ):
        sizes(net, X, spec(rest=4))
    assert sizes(net, X, {**spec(rest=4), **{"0": None, "1": None}})["4"] == 1  # vectors may be single


CUT = {  # what comes between two convolutions of 16 channels, and the layers that become single
    "group norm": (nn.GroupNorm(2, 16), {}),
    "group norm cuts": (nn.GroupNorm(8, 16), {"first"}),
    "each channel": (nn.GroupNorm(16, 16), {}),
    "conv groups": (conv(16, 16, groups=4), {}),
    "conv groups cut": (conv(16, 16, groups=8), {"first", "middle"}),
    "conv groups cut the input": (conv(16, 32, groups=8), {"first"}),
    "depthwise": (conv(16, 16, groups=16), {}),  # returns what it gets: not chosen here
    "multiplied": (conv(16, 32, groups=16), {"first", "middle"}),
}


@pytest.mark.parametrize("name", CUT)
def test_cuts_make_single_channels_and_nothing_else_does(name) -> None:
    middle, single = CUT[name]
    after = getattr(middle, "out_channels", 16)
    net = Net(
        lambda net, x: net.head(net.last(net.middle(net.first(x)))),
        first=conv(3, 16),
        middle=middle,
        last=conv(after, 16),
        head=conv(16, 5, 1),
    )
    assert {layer for layer, size in sizes(net, X).items() if size == 1} == {*single, "head"}


def test_cuts_spread_over_sums_gates_and_depthwise_convolutions() -> None:
    def forward(net, x):
        h = net.deep(net.stem(x)) + net.short(x)
        h = net.norm(h * net.gate(h.mean((2, 3), keepdim=True)).sigmoid())
        return net.head(net.free(h))

    net = Net(
        forward,
        stem=conv(3, 16),
        deep=conv(16, 16, groups=16),
        short=conv(3, 16),
        gate=conv(16, 16, 1),
        norm=nn.GroupNorm(8, 16),
        free=conv(16, 16),
        head=conv(16, 4, 1),
    )
    assert sizes(net, X) == {"stem": 1, "short": 1, "gate": 1, "free": 4, "head": 1}


@pytest.mark.parametrize(("half", "size"), [(8, 4), (6, 1)])
def test_what_is_added_to_a_concatenation_is_as_its_parts(half, size) -> None:
    """A ghost module: half of the maps from the other half, and a shortcut around it."""
    net = Net(
        lambda net, x: net.head(torch.cat([net.a(x), net.ghost(net.a(x))], 1) + net.short(x)),
        a=conv(3, half),
        ghost=conv(half, half, groups=half),
        short=conv(3, 2 * half, 1),
        head=conv(2 * half, 5),
    )
    assert sizes(net, X) == {"a": size, "short": size, "head": 1}


def test_what_is_added_to_images_is_single() -> None:
    net = Net(lambda net, x: net.head(x + net.a(x)), a=conv(4, 4), head=conv(4, 8))
    assert sizes(net, torch.rand(2, 4, 8, 8))["a"] == 1


def test_linear_layers_of_a_head_return_single_numbers_unless_named() -> None:
    def forward(net, x):
        h = net.conv(x).mean((2, 3))
        if net.pools:
            h = ien.group_pool(h, 4)
        return net.head(F.relu(net.hidden(h)))

    for pools, before in ((True, 4), (False, 16)):
        net = Net(forward, pools=pools, conv=conv(3, 16), hidden=nn.Linear(before, 8), head=nn.Linear(8, 3))
        for specs in (AUTO, spec(rest=4)):
            assert sizes(net, X, specs) == {"conv": 4, "hidden": 1, "head": 1}
        assert sizes(net, X, {"": None, **spec(hidden=4)})["hidden"] == 4
        assert sizes(net, X, spec(rest=4, conv=1)) == {"conv": 1, "hidden": 1, "head": 1}


def test_linear_layers_that_lead_to_maps_keep_feature_groups_where_there_are_some() -> None:
    for specs in (AUTO, spec(rest=4)):
        assert sizes(excited(), X, specs) == {"first": 4, "squeeze": 4, "excite": 4, "last": 1}
    scores = nn.Sequential(excited(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 4))
    found = sizes(scores, X)
    assert found == {"0.first": 4, "0.squeeze": 4, "0.excite": 4, "0.last": 4, "3": 1, "4": 1}


def test_pixel_shuffles_are_marked_and_count_channels_after_them() -> None:
    net = nn.Sequential(conv(3, 32), nn.ReLU(), nn.PixelShuffle(2), conv(8, 12), nn.PixelShuffle(2))
    wiring = wired(net, X)
    assert wiring.shuffles == {"0": 2, "3": 2} and wiring.channels == {"0": 8, "3": 3}
    assert wiring.leaving == {"3"} and sizes(net, X) == {"0": 4, "3": 1}


def test_vectors_leave_the_model_in_pairs() -> None:
    net = nn.Sequential(conv(3, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    assert sizes(net, X, outputs="vector") == {"0": 4, "3": VECTOR}
    assert sizes(net, X, {"": None, **spec(**{"3": 1})}, outputs="vector")["3"] == 1
    hidden = nn.Sequential(*net[:3], nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    assert sizes(hidden, X) == {"0": 4, "3": 1, "5": 1}
    assert sizes(hidden, X, outputs="vector") == {"0": 4, "3": 4, "5": VECTOR}
    net[3] = nn.Linear(8, 3)
    with pytest.raises(ValueError, match=r"'3' returns 3, which are not pairs \(dx, dy\)"):
        sizes(net, X, outputs="vector")


def test_parts_without_gradients_are_followed_too() -> None:
    class Frozen(nn.Sequential):
        def forward(self, x):
            with torch.no_grad():
                return super().forward(x)

    wiring = wired(nn.Sequential(Frozen(conv(3, 8), conv(8, 8)), conv(8, 4)), X)
    assert names(wiring, "0.1") == {"0.0"} and names(wiring, "1") == {"0.1"} and wiring.leaving == {"1"}
    assert set(wiring.spreads) == {"0.0", "0.1", "1"}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x.sigmoid()


def written(net, x):
    h = torch.zeros(2, 8, 8, 8)
    h[:, :] = net.a(x)
    return h


FOLLOWED = {
    "in place": lambda net, x: F.relu_(net.a(x).mul_(2)),
    "function": lambda net, x: Swish.apply(net.a(x)),
    "written": written,
    "tokens": lambda net, x: (net.a(x).flatten(2).mT * 2).mT.view(2, 8, 8, 8),
    "resized": lambda net, x: F.interpolate(net.a(x), 9),
    "detached": lambda net, x: net.a(x).detach().clone(),
    "any order": lambda net, x: torch.where(x[:, :1] > 0, 0.0, net.a(x)),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_channels_are_followed_through_all_kinds_of_operations(name) -> None:
    net = Net(lambda net, x: net.last(FOLLOWED[name](net, x)), a=conv(3, 8), last=conv(8, 4))
    assert (("a", 8),) in wired(net, X).read["last"]


def test_what_is_added_one_after_another_shares_a_space() -> None:
    layers = {name: conv(3, 8) for name in "abcd"}
    net = Net(lambda net, x: net.last((net.a(x) + net.b(x)) * net.c(x)), **layers, last=conv(8, 4))
    wiring = wired(net, X)
    assert wiring.spaces["a"] == wiring.spaces["c"] == {"a", "b", "c"} and "d" not in wiring.spaces


def test_a_layer_that_runs_twice_has_the_sources_of_both() -> None:
    net = Net(lambda net, x: net.b(net.b(net.a(x)).relu()), a=conv(3, 8), b=conv(8, 8))
    assert names(wired(net, X), "b") == {"a", "b"}


def test_hidden_layers_on_arguments_or_the_images_return_single_numbers() -> None:
    def forward(net, x):
        numbers = x.mean((2, 3)) if net.reads_images else torch.rand(1, 3)
        gates = net.gates(F.relu(net.hidden(numbers)))
        return net.last(net.body(x) * gates[:, :, None, None])

    layers = {"hidden": nn.Linear(3, 8), "gates": nn.Linear(8, 16), "body": conv(3, 16), "last": conv(16, 4)}
    for reads_images in (True, False):
        net = Net(forward, reads_images=reads_images, **layers)
        assert sizes(net, X) == {"hidden": 1, "gates": 4, "body": 4, "last": 1}


def test_what_nobody_knows_stays_unknown() -> None:
    def forward(net, x):
        both = F.pixel_shuffle(torch.cat([net.a(x), net.b(x)], 1), 2)
        return net.last(torch.cat([both, F.interpolate(x, 16)], 1))

    net = Net(forward, a=conv(3, 8), b=conv(3, 8), last=conv(7, 4))
    assert wired(net, X).read["last"] == [((None, 3),)]  # three of seven channels: it does not fit
