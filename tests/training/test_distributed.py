"""Several processes: the gradients, elements and sums of one, and the files of one."""

import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

import ien.data
from ien.training import ALONE, Config, Processes, Stopped, joined, run
from ien.training import run_folder as folder
from ien.training.classify import CLASSIFY, ClassifyTask
from ien.training.loop import take_step, train
from ien.training.network import build, objective_of, plain_of, tie_weights
from tests.helpers import toy
from tests.helpers.two_processes import together

# --- one step


class Seen:
    """An objective that remembers the images and elements it was given."""

    def __init__(self, objective: ien.EquivarianceLoss) -> None:
        self.objective, self.layers, self.sample = objective, objective.layers, objective.sample
        self.views = objective.views

    def __call__(self, model: nn.Module, x: Tensor, *, g: Tensor) -> ien.Equivariance:
        self.x, self.g = x, g.view(-1, len(x))
        return self.objective(model, x, g=g)


def one_step(config: Config, size: int, processes: Processes) -> dict[str, Any]:
    """A step of plain gradient descent, in float64, with BatchNorm in eval mode."""
    network = build(config)
    tie_weights(config, network, torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    network.double().eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    objective = objective_of(config, network)
    data = toy.dataset()
    setup = ClassifyTask(
        config,
        network,
        processes.wrap(network, torch.device("cpu")),
        Seen(objective) if objective else None,
        torch.optim.SGD(network.parameters()),
        data.train_x.double() / 255,
        data.train_y,
        torch.zeros(1),
        processes,
        torch.arange(len(data.train_x)),
    )
    sums = take_step(setup, torch.arange(30, 30 + size), 1, 2)
    gradients = {name: before[name] - weight.detach() for name, weight in network.named_parameters()}
    seen = (setup.objective.x, setup.objective.g) if objective else ()
    return {"gradients": gradients, "sums": sums, "seen": seen}


CASES = {
    "even": (8, {}),
    "odd": (7, {}),
    "one image": (1, {}),
    "two copies": (5, {"samples": 2}),
    "rotated": (6, {"rotate": True, "augment": False, "beta": 0.0}),
    "no loss": (6, {"beta": 0.0}),
    "tied": (6, {"beta": 0.0, "augment": False, "tie": "smooth"}),
    "tied, with the loss": (5, {"tie": "free", "action": "regular"}),
}
CASE_CONFIG = {"schedule": "exponential", "max_lr": 1.0}


def all_of_it(processes: Processes, path: Path) -> None:
    """What two processes do that are not disturbed, one after the other."""
    for name, (size, changes) in CASES.items():
        result = one_step(toy.config(**CASE_CONFIG, **changes), size, processes)
        torch.save(result, path / f"{name} {processes.rank}.pt")
    epoch(processes, path)
    resumed(processes, path)
    diverging(processes, path)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder of what two processes have done."""
    path = tmp_path_factory.mktemp("two")
    together(all_of_it, path)
    return path


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_step_of_two_processes_is_that_of_one(two, name) -> None:
    size, changes = CASES[name]
    alone = one_step(toy.config(**CASE_CONFIG, **changes), size, ALONE)
    first, second = (torch.load(two / f"{name} {rank}.pt", weights_only=True) for rank in range(2))
    largest = max(float(gradient.abs().max()) for gradient in alone["gradients"].values())
    assert largest > 1e-3
    for weight, gradient in alone["gradients"].items():
        assert torch.equal(first["gradients"][weight], second["gradients"][weight])
        assert (first["gradients"][weight] - gradient).abs().max() < 1e-10 * largest
    # losses, hits and images add up
    torch.testing.assert_close(first["sums"] + second["sums"], alone["sums"], rtol=1e-10, atol=1e-10)
    assert alone["sums"][-1] == size and second["sums"][-1] == (size + 1) // 2
    if alone["seen"]:  # each image has the element that it has in one process
        (x, g), shares = alone["seen"], [r["seen"] for r in (first, second) if r["sums"][-1] > 0]
        assert torch.equal(torch.cat([share[0] for share in shares]), x)
        assert torch.equal(torch.cat([share[1] for share in shares], dim=1), g)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shares_are_even_and_take_each_image_once(count) -> None:
    for n in (0, 1, 7, 64):
        parts = [list(range(n))[Processes(rank, count).share(n)] for rank in range(count)]
        assert [image for part in parts for image in part] == list(range(n))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# --- whole runs


def epoch(processes: Processes, path: Path) -> None:
    """Train on images that carry their number, each process with a folder of its own."""
    x = torch.arange(97, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 28, 28) / 97
    data = ien.data.Dataset("toy", "numbered", x, torch.arange(97) % 10, x[:9], torch.arange(9), classes=10)
    mine, steps = path / str(processes.rank), []

    def recorded(setup: ClassifyTask, batch: Tensor, *place: int) -> Tensor:
        values = take_step(setup, batch, *place)
        steps.append((batch[processes.share(len(batch))], values))
        return values

    if processes.first:
        mine.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ien.training.loop.take_step", recorded)
        train(mine, CLASSIFY.prepare(toy.config(epochs=1, cycle_epochs=1), data, processes))
    torch.save(steps, path / f"steps {processes.rank}.pt")


@pytest.mark.slow
def test_an_epoch_sees_each_image_once_and_sums_up_exactly(two) -> None:
    both = [torch.load(two / f"steps {rank}.pt", weights_only=True) for rank in range(2)]
    images = torch.cat([batch for steps in both for batch, _ in steps])
    assert sorted(images.tolist()) == list(range(97))
    assert len(both[0]) == len(both[1]) == 7  # batches of 14 and 13
    sums = torch.stack([values for steps in both for _, values in steps]).sum(0)
    (metrics,) = folder.read_metrics(two / "0")
    assert sums[-1] == 97
    assert abs(metrics["task_loss"] - float(sums[0] / 97)) < 1e-12
    assert metrics["train_accuracy"] == float(sums[-2]) / 97
    assert abs(metrics["terms"]["conv6"] - float(sums[6] / 97)) < 1e-12
    assert not (two / "1").exists()  # the first process alone writes


def resumed(processes: Processes, path: Path) -> None:
    """Without the first one's files in the second process, as on another machine."""
    mine = path / f"run {processes.rank}"
    if processes.first:
        mine.mkdir(exist_ok=True)
    network, *_ = train(mine, CLASSIFY.prepare(toy.config(processes=2), toy.dataset(), processes))
    torch.save(network.state_dict(), path / f"weights {processes.rank}.pt")


def signalled(processes: Processes, path: Path) -> None:
    """The second process is asked to stop in the middle of the second epoch; then both go on."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(toy.loop, "take_step", toy.loop.take_step)  # which at_call changes
        if not processes.first:
            toy.at_call(9, toy.loop, "take_step", lambda *a: os.kill(os.getpid(), signal.SIGTERM))
        resumed(processes, path)
    if processes.first:
        state = folder.load_checkpoint(path / "run 0")
        assert (state["epoch"], state["step"]) == (1, 3)
    resumed(processes, path)


@pytest.mark.slow
def test_stopped_and_resumed_ends_as_if_never_stopped(tmp_path, two) -> None:
    together(signalled, tmp_path)
    ours, others = ((path / "run 0/metrics.jsonl").read_bytes() for path in (tmp_path, two))
    assert ours == others
    expected = torch.load(two / "weights 0.pt", weights_only=True)
    for rank in range(2):
        weights = torch.load(tmp_path / f"weights {rank}.pt", weights_only=True)
        # the statistics of BatchNorm are each process's own; those of the first are kept
        names = [name for name in expected if rank == 0 or "running" not in name]
        assert all(torch.equal(weights[name], expected[name]) for name in names)
    assert not (tmp_path / "run 1").exists()


def diverging(processes: Processes, path: Path) -> None:
    """One image is spoilt, which only one of the processes sees."""
    data = toy.dataset()
    x = torch.ones(data.train_x.shape)
    x[40] = float("nan")
    data = ien.data.Dataset("toy", "spoilt", x, data.train_y, x, data.train_y, classes=10)
    with pytest.raises(ien.training.Diverged) as caught:
        train(path / "spoilt", CLASSIFY.prepare(toy.config(processes=2), data, processes))
    (path / f"error {processes.rank}.txt").write_text(str(caught.value))


@pytest.mark.slow
def test_all_processes_notice_when_one_diverges(two) -> None:
    first, second = ((two / f"error {rank}.txt").read_text() for rank in range(2))
    assert first == second and "the task loss became nan in step" in first


def norms_of(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def test_norms_are_synchronised_on_gpus_before_they_are_tied() -> None:
    network = build(toy.config())
    for processes, device in ((ALONE, "cuda"), (Processes(0, 2), "cpu")):
        assert processes.synchronise_norms(network, torch.device(device)) is network
        assert not any(isinstance(module, nn.SyncBatchNorm) for module in network.modules())
    weights = list(network.parameters())
    synchronised = Processes(0, 2).synchronise_norms(network, torch.device("cuda"))
    kinds = [type(module) for module in synchronised.modules()]
    assert kinds.count(nn.SyncBatchNorm) == 7 and nn.BatchNorm2d not in kinds
    some = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    expected = synchronised.eval()(some)
    assert all(ours is theirs for ours, theirs in zip(synchronised.parameters(), weights, strict=True))
    tie_weights(toy.config(tie="free", beta=0.0), synchronised, some)
    assert all(isinstance(module, nn.SyncBatchNorm) for module in norms_of(synchronised))
    assert not torch.equal(synchronised(some), expected)
    plain = plain_of(synchronised)
    assert [type(module) for module in plain.modules()] == kinds
    assert torch.equal(plain(some), synchronised(some))


def test_a_process_left_with_one_image_is_refused() -> None:
    config = toy.config(augment=False, beta=0.0, batch_size=3, processes=2)
    with pytest.raises(ValueError, match="a single image, too few for BatchNorm: set it to 8 or more"):
        CLASSIFY.prepare(config, toy.dataset(), _Unwrapped(0, 2))


class _Unwrapped(Processes):
    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        return model


def test_without_torchrun_a_process_is_alone(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as processes:
        assert processes == ALONE and processes.first and not dist.is_initialized()
    assert processes.any(True) and not processes.any(False)
    assert processes.from_first(lambda: 3) == 3


def member_of_torchrun(rank: int, port: int, path: Path, stop: bool) -> None:
    """A run as torchrun starts it; the second process may be asked to stop."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    ien.data.DATASETS |= toy.DATASETS
    if stop and rank:
        toy.at_call(9, toy.loop, "take_step", lambda *a: os.kill(os.getpid(), signal.SIGTERM))

    def no_model_is_left(leave: Callable[[], None]) -> None:
        if any(type(thing) is nn.parallel.DistributedDataParallel for thing in gc.get_objects()):
            sys.exit(3)

    toy.at_call(1, dist, "destroy_process_group", no_model_is_left)
    try:
        with joined() as processes:
            silent = Console(file=io.StringIO())
            record = run(path, toy.config(processes=2), "embedded", None, None, processes, silent)
            assert bool(record) is processes.first
    except Stopped:
        sys.exit(130)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_the_group_is_left_without_a_model_that_still_uses_it(tmp_path, stop) -> None:
    """Or a process may hang in the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = [toy.start(member_of_torchrun, rank, port, tmp_path / "run", stop) for rank in range(2)]
    assert [toy.finish(process) for process in processes] == [130 * stop] * 2
    assert (tmp_path / "run" / "result.json").exists() is not stop


@pytest.mark.slow
def test_torchrun_trains_tests_and_records_once(tmp_path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "ien", "run", "rot-mnist/ien-r4", "--preset=smoke", "--threads=1", "--data=embedded"]
    command += ["--set=epochs=1", "--device=cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **output)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("epoch 1/1 step 4/4") == done.stdout.count("testing on 100 images") == 1
    (path,) = tmp_path.rglob("config.json")
    record = json.loads((path.parent / "result.json").read_text())
    assert record["config"]["machine"]["processes"] == 2 and "processes2" in path.parent.name
    files = {file.name for file in path.parent.iterdir() if not file.name.startswith(".")} - {"tensorboard"}
    assert files == {
        "README.md",
        "config.json",
        "last.pt",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
    }
    assert ien.load(path.parent)(torch.rand(1, 1, 28, 28)).shape == (1, 10)
