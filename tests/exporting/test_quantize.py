"""int8: close to the model, smaller, integer inside, and still equivariant where the model is."""

import pytest
import torch
from torch import nn

import ien
from tests.helpers.exports import quarter_turn_error, run_onnx

onnx = pytest.importorskip("onnx", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'")
pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
pytestmark = pytest.mark.usefixtures("one_thread")


def test_int8_is_close_to_the_model_and_as_equivariant(tmp_path) -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net.append(nn.Linear(64, 6))
    images, calibration = torch.rand(24, 1, 12, 12), torch.rand(16, 1, 12, 12)
    tied = ien.make_equivariant(net, "rot4", images)
    assert tied is not None
    plain = ien.plain_copy(net).eval()
    labels = plain(images).argmax(1)
    path = tmp_path / "net.onnx"
    result = ien.export(net, path, images, labels=labels, int8=calibration)

    types = {each.data_type for each in onnx.load(path).graph.initializer if len(each.dims) == 4}
    assert types == {onnx.TensorProto.INT8}  # kernels
    ien.export(net, tmp_path / "float.onnx", images)
    assert path.stat().st_size < 0.6 * (tmp_path / "float.onnx").stat().st_size
    assert set(result.versions) >= {"model", "onnxruntime", "int8"}
    int8 = result.versions["int8"]
    found, expected = run_onnx(path, images), plain(images).detach().numpy()
    assert int8.difference == pytest.approx(abs(found - expected).max() / abs(expected).max(), rel=1e-3)
    assert 1e-4 < int8.difference < 0.1
    assert int8.accuracy == (found.argmax(1) == labels.numpy()).mean()
    for turns in (1, 2, 3):
        error = quarter_turn_error(lambda x: run_onnx(path, x), images, turns)
        # rounding does not know which way a kernel is rotated: a few single steps at most
        assert int8.errors[f"{90 * turns}°"] == pytest.approx(error, rel=1e-3, abs=1e-9)
        assert error < 1e-3
    assert "int8" in str(result).splitlines()[0] and result.difference < 1e-4  # of the float file


def test_scores_beyond_those_of_the_calibration_are_not_cut_off(tmp_path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 1, bias=False), nn.Flatten(), nn.Linear(8 * 64, 3))
    for parameter in net.parameters():
        parameter.data.abs_()
    bright = torch.ones(4, 1, 8, 8)
    half_bright = bright.clone()
    half_bright[..., ::2] = 0  # each pixel of a map is in the same range, but not the sum over all
    path = tmp_path / "net.onnx"
    ien.export(net, path, bright, int8=half_bright)
    expected = net(bright).detach().numpy()
    assert expected.min() > 1.5 * float(net(half_bright).detach().max())
    assert abs(run_onnx(path, bright) - expected).max() < 0.03 * expected.max()
