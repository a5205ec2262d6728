"""Files as modules: what they return, what they say about themselves, and what is refused."""

import pytest
import torch
from torch import nn

import ien
from ien.exporting import OnnxModel
from ien.exporting.runtimes import OpenVinoModel, program_model, weights_model
from tests.helpers.exports import run_onnx

pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
pytestmark = pytest.mark.usefixtures("one_thread")


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 4)).eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network, and its ONNX file."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    model = net()
    ien.export(model, path, torch.rand(4, 3, 7, 7), about={"note": "mine"})
    return model, path


def test_an_onnx_file_is_a_module_that_compares_with_the_model(written) -> None:
    model, path = written
    images = torch.rand(20, 3, 7, 7)
    runs = OnnxModel(path)
    torch.testing.assert_close(runs(images), model(images))
    assert (runs(images).numpy() == run_onnx(path, images)).all()
    assert runs.header["note"] == "mine" and runs.header["size"] == [3, 7, 7]
    compared = ien.compare({"torch": model, "onnx": runs}, images, "rot4")
    assert compared.versions["onnx"].like_original == 1.0
    assert compared.versions["onnx"].agreement == compared.versions["torch"].agreement


def test_openvino_computes_the_same(written) -> None:
    pytest.importorskip("openvino")
    model, path = written
    images = torch.rand(5, 3, 7, 7)
    torch.testing.assert_close(OpenVinoModel(path)(images), model(images), rtol=1e-4, atol=1e-5)


def test_images_of_another_size_and_files_that_are_no_onnx_are_refused(written, tmp_path) -> None:
    _, path = written
    with pytest.raises(ValueError, match=r"net\.onnx fails on images \(1, 3, 8, 8\) of torch\.float32"):
        OnnxModel(path)(torch.rand(1, 3, 8, 8))
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"onnxruntime cannot read .*damaged\.onnx"):
        OnnxModel(damaged)
    with pytest.raises(FileNotFoundError, match=r"there is no file nowhere\.onnx"):
        OnnxModel("nowhere.onnx")


def test_programs_and_weights_are_modules_too(tmp_path) -> None:
    model, images = net(), torch.rand(3, 3, 7, 7)
    for name in ("net.pt2", "net.safetensors"):
        ien.export(model, tmp_path / name, images)
    expected = model(images)
    with torch.no_grad():
        torch.testing.assert_close(program_model(tmp_path / "net.pt2")(images), expected)
    other = net()
    torch.testing.assert_close(weights_model(tmp_path / "net.safetensors", other)(images), expected)
    assert not torch.equal(other(images), expected)  # a copy got them
