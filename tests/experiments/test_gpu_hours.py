"""The estimate of what a table costs: the operations of a row, counted by hand."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from ien.experiments.catalogue import config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def gpu_hours():
    spec = importlib.util.spec_from_file_location("gpu_hours", DOCS / "gpu_hours.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operations_of_a_row_are_those_of_its_layers(gpu_hours) -> None:
    settings = config("rot-mnist/ien-r4", "paper")
    network = gpu_hours.plain_of(gpu_hours.build(settings))
    macs = 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal macs
        macs += output[0].numel() * module.weight[0].numel()  # a product for each weight of an output

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    with torch.no_grad():
        network.eval()(torch.zeros(1, 1, 28, 28))
    images = 12_000 * settings.schedule.epochs
    # two views of each image, three passes, two operations
    assert gpu_hours.operations(settings) == 2 * 3 * 2 * macs * images


def test_the_page_has_a_line_for_each_table(gpu_hours) -> None:
    page = gpu_hours.PAGE.read_text()
    written = page.partition(gpu_hours.START)[2].partition(gpu_hours.END)[0]
    for name in gpu_hours.TABLES:
        assert f"| {name} | " in written
    for gpu in gpu_hours.GPUS:
        assert f" {gpu} |" in written
