"""One .safetensors file in place of a run folder: the same network, and nothing is executed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import ien
from ien.training.run_folder import read_config
from ien.training.single_file import about_run, read_single

pytestmark = pytest.mark.usefixtures("toy_data")


@pytest.fixture
def single(finished, tmp_path):
    """What ``ien export RUN -o net.safetensors`` writes."""
    path = tmp_path / "net.safetensors"
    ien.export(ien.load(finished), path, torch.rand(2, 1, 28, 28), about=about_run(finished))
    return path


def with_header(single, change) -> None:
    """Write the file again, with another header."""
    weights = load_file(single)
    header = {"run": about_run_of(single)}
    change(header["run"])
    save_file(weights, single, {"ien": json.dumps(header)})


def about_run_of(single) -> dict:
    from safetensors import safe_open

    with safe_open(single, framework="pt") as file:
        return json.loads(file.metadata()["ien"])["run"]


def test_a_file_loads_as_the_network_of_its_run(finished, single) -> None:
    x = torch.rand(3, 1, 28, 28)
    expected, found = ien.load(finished), ien.load(single)
    assert torch.equal(found(x), expected(x)) and type(found) is type(expected)
    assert found.taps == expected.taps and not found.training
    assert torch.equal(ien.load(finished / "model.safetensors")(x), expected(x))
    assert read_single(single).config == read_config(finished)


def test_a_header_that_is_of_another_format_or_damaged_is_named(single) -> None:
    with_header(single, lambda run: run.update(format=99))
    with pytest.raises(ValueError, match=r"net\.safetensors has no configuration .*format 99"):
        ien.load(single)
    with_header(single, lambda run: run.update(format=3, config={"task": "paint"}))
    with pytest.raises(ValueError, match="there is no task 'paint'"):
        ien.load(single)
    with_header(single, lambda run: run.pop("config"))
    with pytest.raises(ValueError, match=r"has no configuration that can be read \(no config\)"):
        ien.load(single)


def test_weights_of_another_network_are_refused(single) -> None:
    with_header(single, lambda run: run["config"]["network"].update(width=0.125))
    with pytest.raises(
        ValueError, match=r"does not fit the network of its header .*: export it again"
    ) as caught:
        ien.load(single)
    assert "\n" not in str(caught.value)


def test_a_file_without_configuration_asks_for_the_function_that_makes_the_network(tmp_path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())

    net, path = build(), tmp_path / "net.safetensors"
    ien.export(net, path, torch.rand(2, 3, 6, 6))
    with pytest.raises(
        ValueError, match="no configuration of a run: give the function that makes the network"
    ):
        ien.load(path)
    x = torch.rand(2, 3, 6, 6)
    assert torch.equal(ien.load(path, build=build)(x), net(x))
    assert torch.equal(ien.load(path, build=build())(x), net(x))
    with pytest.raises(ValueError, match="weight"):
        ien.load(path, build=lambda: nn.Conv2d(1, 1, 1))


def test_files_of_other_kinds_are_refused_with_what_runs_them(tmp_path) -> None:
    for name, message in {
        "net.onnx": "OnnxModel",
        "net.pt2": r"torch\.export\.load",
        "net.pth": "load_state_dict",
    }.items():
        (tmp_path / name).write_bytes(b"content")
        with pytest.raises(ValueError, match=rf"reads a run folder or a \.safetensors file; .*{message}"):
            ien.load(tmp_path / name)
    damaged = tmp_path / "net.safetensors"
    damaged.write_bytes(b"content")
    with pytest.raises(ValueError, match=r"net\.safetensors is damaged"):
        ien.load(damaged)
    with pytest.raises(FileNotFoundError):
        ien.load(tmp_path / "nowhere.safetensors")


def test_a_file_of_canonicalize_is_told_from_a_model(tmp_path) -> None:
    wrapped = ien.Canonicalize(torch.nn.Identity(), "rot4")
    wrapped.fit(torch.rand(70, 1, 8, 8), steps=1, progress=False)
    wrapped.save(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"and no model: read it with ien\.Canonicalize\.load\(model, "):
        ien.load(tmp_path / "c.safetensors")
