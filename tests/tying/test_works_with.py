"""What users do with a model, each thing once: a tied model stays exact, and goes on learning."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import swa_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ien
from tests.helpers import exact, zoo
from tests.helpers.two_processes import together

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*independent features"),  # these networks are small
]

ENTRY = zoo.Entry(zoo.resnet_bottleneck)
GROUPS = pytest.mark.parametrize("group", ["rot4", "rot8"])
"""A group that permutes pixels, and one that resamples, whose kernels are made of coefficients."""
Adam = partial(torch.optim.Adam, lr=0.01)


def tied(group: str = "rot4", seed: int = 0, model: nn.Module | None = None) -> nn.Module:
    """The network of :data:`ENTRY`, tied."""
    torch.manual_seed(seed)
    if model is None:
        model = ENTRY.make()
    ien.make_equivariant(model, group, ENTRY.images())
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    return exact.train(model, ENTRY, optimizer, steps)


def assert_exact(model: nn.Module, bound: float = exact.ROUNDING) -> None:
    assert exact.error(model.eval(), ENTRY) < bound


@torch.no_grad()
def output(model: nn.Module) -> Tensor:
    return model.eval()(ENTRY.images(seed=3))


def state(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


# -- optimizers


class Sharpness(torch.optim.Optimizer):
    """Sharpness-aware steps (Foret et al., 2021): weights are moved, and put back before the step.

    It has a list of its own of what it trains, and writes to ``.data``.
    """

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.own = list(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        with torch.enable_grad():
            closure()
        norm = torch.stack([p.grad.norm() for p in self.own]).norm()
        moves = [0.05 * p.grad / norm for p in self.own]
        for p, move in zip(self.own, moves, strict=True):
            p.data.add_(move)
        with torch.enable_grad():
            loss = closure()
        for p, move in zip(self.own, moves, strict=True):
            p.data.sub_(move)
            p.data.add_(p.grad, alpha=-self.param_groups[0]["lr"])
        return loss


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD foreach": partial(torch.optim.SGD, lr=0.03, foreach=True),
    "SGD fused": partial(torch.optim.SGD, lr=0.03, momentum=0.9, fused=True),
    "Adam": Adam,
    "Adam foreach": partial(torch.optim.Adam, lr=0.01, amsgrad=True, foreach=True),
    "Adam fused": partial(torch.optim.Adam, lr=0.01, fused=True),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "AdamW fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.01),
    "RAdam": partial(torch.optim.RAdam, lr=0.01),
    "Adamax": partial(torch.optim.Adamax, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.02),
    "Adagrad fused": partial(torch.optim.Adagrad, lr=0.02, fused=True),
    "Adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.002),
    "Rprop": partial(torch.optim.Rprop, lr=0.001),
    "ASGD": partial(torch.optim.ASGD, lr=0.03),
    "Adafactor": partial(torch.optim.Adafactor, lr=0.02),
    "LBFGS": partial(torch.optim.LBFGS, lr=0.1, max_iter=4),
    "LBFGS with a line search": partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"),
    "sharpness": partial(Sharpness, lr=0.05),
}


@GROUPS
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str, group: str) -> None:
    model = tied(group)
    optimizer = OPTIMIZERS[name](model.parameters())
    model.train()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = exact.loss(model, ENTRY)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(8)]
    assert min(losses[-3:]) < losses[0]
    assert_exact(model)


def test_all_optimizers_of_torch_are_tried() -> None:
    tried = {make.func.__name__ for make in OPTIMIZERS.values()}  # type: ignore[attr-defined]
    every = {name for name in dir(torch.optim) if name[0].isupper()}
    assert every - tried == {"Optimizer", "SparseAdam", "Muon"}  # of sparse gradients; of matrices, below


@GROUPS
def test_muon_trains_what_is_a_matrix(group: str) -> None:
    model = tied(group)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    assert matrices
    before = [p.detach().clone() for p in matrices]
    for optimizer in (torch.optim.Muon(matrices, lr=0.01), Adam(others)):
        train(model, optimizer)
    assert not any(torch.equal(p, was) for p, was in zip(matrices, before, strict=True))
    assert_exact(model)


@GROUPS
def test_an_optimizer_made_before_trains_what_is_tied(group: str) -> None:
    model = ENTRY.make()
    optimizer = Adam(model.parameters())
    tied(group, model=model)
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    before = state(model)
    losses = train(model, optimizer)
    assert losses[-1] < losses[0]
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    assert not still
    assert_exact(model)


def test_parameter_groups_hold_every_parameter_once() -> None:
    model = ENTRY.make()
    made = ien.make_equivariant(model, "rot4", ENTRY.images())
    groups = made.parameter_groups(0.01)
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    losses = train(model, torch.optim.AdamW(groups))
    assert losses[-1] < losses[0]
    assert_exact(model)


# -- steps of other kinds


@GROUPS
def test_bfloat16_autocast(group: str) -> None:
    model = tied(group)
    optimizer, losses = Adam(model.parameters()), []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = exact.loss(model.train(), ENTRY)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert_exact(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert_exact(model, 0.05)


def test_tied_inside_autocast_or_without_gradients() -> None:
    for context in (torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.inference_mode()):
        model = ENTRY.make()
        with context:
            tied(model=model)
        losses = train(model, Adam(model.parameters()))
        assert losses[-1] < losses[0]
        assert_exact(model)


def test_float16_with_a_grad_scaler() -> None:
    model = tied()
    optimizer, scaler, losses = Adam(model.parameters()), torch.amp.GradScaler("cpu"), []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = exact.loss(model.train(), ENTRY)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert_exact(model)


def test_accumulated_and_clipped_gradients() -> None:
    model = tied()
    optimizer, before = torch.optim.SGD(model.parameters(), lr=1.0), state(model)
    for seed in range(3):
        exact.loss(model.train(), ENTRY, seed).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    moved = torch.stack([(p - before[name]).norm() for name, p in model.named_parameters()]).norm()
    assert norm > 0.1
    torch.testing.assert_close(moved.item(), 0.1, rtol=1e-3, atol=0)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    assert max(p.grad.abs().max() for p in model.parameters()) <= 0.01
    assert_exact(model)


@GROUPS
@pytest.mark.parametrize("when", ["before", "after"])
def test_frozen_layers_stay_and_the_rest_learns(when: str, group: str) -> None:
    model = ENTRY.make()
    if when == "before":
        model[0].requires_grad_(False)
    tied(group, model=model)
    if when == "after":
        model[0].requires_grad_(False)
    frozen, weight = state(model[0]), model[0][0].weight.detach().clone()
    assert not any(p.requires_grad for p in model[0].parameters())
    assert not model[0][0].weight.requires_grad
    optimizer = Adam([p for p in model.parameters() if p.requires_grad])
    losses = train(model, optimizer)
    assert losses[-1] < losses[0]
    assert torch.equal(model[0][0].weight, weight)
    for name, _ in model[0].named_parameters():
        assert torch.equal(model[0].state_dict()[name], frozen[name])
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    train(model, optimizer)
    assert not torch.equal(model[0][0].weight, weight)
    assert_exact(model)


@GROUPS
def test_a_model_called_twice_in_a_step_gets_both_gradients(group: str) -> None:
    model = tied(group).eval()
    parameters = list(model.parameters())
    first = torch.autograd.grad(exact.loss(model, ENTRY, 0), parameters)
    second = torch.autograd.grad(exact.loss(model, ENTRY, 1), parameters)
    both = torch.autograd.grad(exact.loss(model, ENTRY, 0) + exact.loss(model, ENTRY, 1), parameters)
    for a, b, sum_ in zip(first, second, both, strict=True):
        torch.testing.assert_close(a + b, sum_)
    assert min(g.abs().max() for g in both) > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    model = tied()
    other = copy.deepcopy(model)
    inner = other[2].forward
    other[2].forward = lambda x: checkpoint(inner, x, use_reentrant=reentrant)
    for each in (model, other):
        exact.loss(each.train(), ENTRY).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_channels_last() -> None:
    model = tied().to(memory_format=torch.channels_last)
    expected = output(model)
    torch.testing.assert_close(model(ENTRY.images(seed=3).to(memory_format=torch.channels_last)), expected)
    losses = train(model, Adam(model.parameters()))
    assert losses[-1] < losses[0]
    assert_exact(model)


def test_models_are_stacked_and_run_as_one() -> None:
    models = [tied(seed=seed).eval() for seed in range(3)]
    base = copy.deepcopy(models[0]).to("meta")
    stacked = torch.func.stack_module_state(models)
    x = ENTRY.images()
    found = torch.func.vmap(lambda *state: torch.func.functional_call(base, state, (x,)))(*stacked)
    torch.testing.assert_close(found, torch.stack([model(x) for model in models]), rtol=1e-4, atol=1e-5)


BACKENDS = [
    ("aot_eager", "rot4"),
    ("aot_eager", "rot8"),
    pytest.param("inductor", "rot4", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("backend", "group"), BACKENDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_a_compiled_model_trains_as_the_model_itself(backend: str, group: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(zoo.conv_norm(3, 16), nn.ReLU(), zoo.head(16))
    tied(group, model=model)
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend=backend, fullgraph=True)
    expected = train(model, Adam(model.parameters()))
    losses = train(compiled, Adam(compiled.parameters()))
    assert expected[-1] < expected[0]
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(output(other), output(model), rtol=1e-3, atol=1e-3)
    assert_exact(compiled)


def save_after_steps(processes: Any, folder: Any) -> None:
    model = tied(seed=processes.rank)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = Adam(parallel.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        exact.loss(parallel.train(), ENTRY, processes.rank).backward()
        optimizer.step()
    torch.save((model.state_dict(), exact.error(model.eval(), ENTRY)), folder / f"{processes.rank}.pt")


@pytest.mark.slow
def test_two_processes_stay_equal_and_exact(tmp_path: Any) -> None:
    together(save_after_steps, tmp_path)
    (first, error), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert error < exact.ROUNDING
    assert set(first) == set(tied().state_dict())
    for key, value in first.items():
        if "running" not in key and "num_batches" not in key:  # each process has its own
            assert torch.equal(value, second[key]), key


# -- copies


@GROUPS
@pytest.mark.parametrize("buffers", [False, True])
def test_averages_of_weights(buffers: bool, group: str) -> None:
    model = tied(group)
    average = swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.5), use_buffers=buffers
    )
    optimizer = Adam(model.parameters())
    for _ in range(3):
        train(model, optimizer, 1)
        average.update_parameters(model)
        assert_exact(average)  # what eval mode keeps is computed again after every update
    assert not torch.equal(output(average), output(model))
    swa_utils.update_bn([ENTRY.images(seed=seed) for seed in range(3)], average)
    assert_exact(average)
    assert_exact(ien.plain_copy(average.module))
    torch.testing.assert_close(output(ien.plain_copy(average.module)), output(average), rtol=0, atol=0)


@GROUPS
def test_copies_of_model_and_optimizer_learn_each_for_itself(group: str) -> None:
    model = tied(group)
    optimizer = Adam(model.parameters())
    train(model, optimizer, 2)
    other, its = copy.deepcopy((model, optimizer))
    assert torch.equal(output(other), output(model))
    expected = train(model, optimizer, 3)
    assert train(other, its, 3) == expected  # from the same place, the same way
    train(other, its, 2)
    assert not torch.equal(output(other), output(model))
    ien.make_plain(other)
    losses = train(model, optimizer, 2)  # which shared its classes with the copy
    assert losses[-1] < losses[0]
    for each in (model, other):
        assert_exact(each)


@GROUPS
@pytest.mark.parametrize("assign", [False, True])
def test_a_run_that_is_loaded_continues_to_the_bit(assign: bool, group: str) -> None:
    model = tied(group)
    optimizer = Adam(model.parameters())
    train(model, optimizer, 3)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, 3)

    file.seek(0)
    saved = torch.load(file)
    again = tied(group, seed=1)
    assert not torch.equal(output(again), output(model))  # and eval mode keeps weights that are not its own
    again.load_state_dict(saved[0], assign=assign)
    other = Adam(again.parameters())
    other.load_state_dict(saved[1])
    train(again, other, 3)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert torch.equal(output(again), output(model))


@pytest.mark.parametrize("save", [pickle.dumps, lambda model: torch.save(model, io.BytesIO())])
def test_a_pickle_is_refused_in_one_line_with_the_way_round(save: Callable[[nn.Module], Any]) -> None:
    model = tied()
    with pytest.raises(RuntimeError, match=r"state_dict\(\)") as caught:
        save(model)
    assert "\n" not in str(caught.value) and "plain_copy" in str(caught.value)
    assert torch.equal(output(pickle.loads(pickle.dumps(ien.plain_copy(model)))), output(model))


# -- precision and what eval mode keeps


@GROUPS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_back_loses_no_exactness(dtype: torch.dtype, group: str) -> None:
    model = tied(group)
    train(model, Adam(model.parameters()), 2)
    model.to(dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    x = ENTRY.images().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = state(model)
    model.train()(x).float().square().mean().backward()
    optimizer.step()
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert model.eval()(x).dtype == dtype
    assert exact.error(model, ENTRY, ENTRY.images(seed=99).to(dtype)) < 0.2  # its own rounding
    assert_exact(model.float())
    if dtype == torch.bfloat16:
        assert exact.error(model.double(), ENTRY, ENTRY.images(seed=99).double()) < exact.ROUNDING


class Ops(TorchDispatchMode):
    """Counts operations, and remembers which made a tensor of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.doubles: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count[str(func)] += 1
        for tensor in exact.tensors(result):
            if tensor.dtype == torch.float64:
                self.doubles.append(str(func))
        return result


def operations(model: nn.Module) -> Counter[str]:
    """How often a pass calls each operation; views launch nothing, and norms have theirs while tied."""
    x = ENTRY.images().to(next(model.parameters()).dtype)
    with torch.no_grad(), Ops() as ops:
        model(x)
    del ops.count["aten.view.default"]
    return ops.count


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "a step": lambda model: train(model, Adam(model.parameters()), 1),
    "in place": lambda model: [p.mul_(1.1) for p in model.parameters()],
    "data": lambda model: [p.data.mul_(1.1) for p in model.eval().parameters()],
    "load": lambda model: model.load_state_dict({k: v * 1.1 for k, v in model.state_dict().items()}),
    "assign": lambda model: model.load_state_dict(
        {k: v * 1.1 for k, v in model.state_dict().items()}, assign=True
    ),
    "double": lambda model: model.double(),
    "half": lambda model: model.bfloat16(),
}


@GROUPS
@pytest.mark.parametrize("name", CHANGES)
def test_eval_mode_computes_a_weight_once_until_an_original_changes(name: str, group: str) -> None:
    model = tied(group).eval()
    bare = operations(ien.plain_copy(model))
    first = operations(tied(group).eval())
    assert first.total() > bare.total()
    operations(model)
    assert operations(model) == bare  # nothing but what the plain model does
    was = model[0][0].weight.detach().clone()
    with torch.set_grad_enabled(name == "a step"):
        CHANGES[name](model)
    operations(model)
    now = model[0][0].weight.detach()
    assert now.dtype == next(model.parameters()).dtype
    assert not torch.equal(now.float(), was) or name == "double"
    plain = ien.plain_copy(model)
    x = ENTRY.images().to(now.dtype)
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=0)
    assert operations(model) == operations(plain)


@GROUPS
def test_eval_mode_still_gives_gradients_after_a_pass_without_them(group: str) -> None:
    model = tied(group).eval()
    x = ENTRY.images()
    with torch.inference_mode():
        inferred = model(x)
    with torch.no_grad():
        kept = model(x)
    for _ in range(2):  # twice, each with a graph of its own
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        assert min(p.grad.abs().max() for p in model.parameters()) > 0
    assert torch.equal(inferred, y) and torch.equal(kept, y)
    copy.deepcopy(model)(x).sum().backward()
    losses = train(model, Adam(model.parameters()))
    assert losses[-1] < losses[0]
    assert_exact(model)


@GROUPS
def test_inference_mode(group: str) -> None:
    model = tied(group).eval()
    x = ENTRY.images()
    expected = output(model)
    with torch.inference_mode():
        assert torch.equal(model(ENTRY.images(seed=3)), expected)
        model.train()(x)
    train(model, Adam(model.parameters()), 2)
    assert_exact(model)


@pytest.mark.parametrize("kernels", ["free", "smooth"])
@pytest.mark.parametrize("group", ["rot4", "rot8", "rot4xflip"])
def test_a_step_of_a_float32_model_makes_no_float64(group: str, kernels: str) -> None:
    model = ENTRY.make()
    ien.make_equivariant(model, group, ENTRY.images(), kernels=kernels)
    optimizer = Adam(model.parameters(), foreach=False)
    with Ops() as ops:
        train(model, optimizer, 2)
        model(ENTRY.images())
    assert ops.count.total() > 50
    assert not ops.doubles


@GROUPS
def test_shapes_on_meta_and_fake_tensors(group: str) -> None:
    model = tied(group)
    train(model, Adam(model.parameters()), 1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(ENTRY.images())).shape == (4, 5)
    assert_exact(model)  # nothing fake is kept
    assert copy.deepcopy(model).to("meta")(ENTRY.images().to("meta")).shape == (4, 5)
    assert_exact(model)


# -- what happens to the model around it


def test_a_head_replaced_afterwards_is_noticed() -> None:
    model = ENTRY.make()
    made = ien.make_equivariant(model, "rot4", ENTRY.images())
    x = ENTRY.images(seed=5)
    assert max(made.check(x).values()) < 1e-8
    model[3][2] = nn.Linear(32, 3)
    with pytest.raises(ValueError, match=r"layer '3\.2' \(Linear\) is not tied: it was added after"):
        made.check(x)
    ien.make_plain(model)
    with torch.no_grad():
        y, turned = model.eval()(x), model(x.rot90(1, (2, 3)))
    assert (turned - y).square().mean() > 1e-3 * (y - y.mean(0)).square().mean()  # as it said


@GROUPS
def test_a_weight_written_to_is_computed_again(group: str) -> None:
    model = tied(group).eval()
    expected = output(model)
    with torch.no_grad():
        model[0][0].weight.zero_()  # what was computed, not what it is computed from
    assert torch.equal(model(ENTRY.images(seed=3)), expected)
    model[0][0].weight = torch.randn(16, 3, 3, 3)  # the nearest that is tied
    assert not torch.equal(output(model), expected)
    assert_exact(model)


@pytest.mark.parametrize("call", range(0, 60, 6))
def test_an_exception_inside_leaves_the_model_as_it_was(call: int) -> None:
    model = ENTRY.make().train()
    before, kinds = state(model), [type(module) for module in model.modules()]
    calls = 0

    def interrupt(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > call:
            raise KeyboardInterrupt

    handle = model[2].branch.register_forward_hook(interrupt)
    try:
        ien.make_equivariant(model, "rot4", ENTRY.images())
    except KeyboardInterrupt:
        handle.remove()
    else:
        assert call > 3, "the model never ran"
        return
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [type(module) for module in model.modules()] == kinds
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    tied(model=model)
    assert_exact(model)
