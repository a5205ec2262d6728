"""A file → a module that runs it: onnxruntime, openvino or torch.

Each is called with images and returns tensors, so :func:`ien.compare`, a tracker or a loop of your
own takes it in place of the model. None of them has layers to look into, or gradients.
"""

from __future__ import annotations

import copy
import importlib.util
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .formats import ONNX, check_packages
from .write import read_header

__all__ = ["OnnxModel", "OpenVinoModel", "has_openvino", "program_model", "weights_model"]

ERRORS_ONLY = 3
"""onnxruntime's level of messages."""
MAX_REASON_LENGTH = 200
"""Characters of a runtime's own message that are repeated in ours."""


class OnnxModel(nn.Module):
    """An ONNX file, run by onnxruntime on the CPU: images in, tensors out.

    Not for training: it has no gradient and no parameters.

    Args:
        path: The file, whose only input are images (B, C, H, W).

    Raises:
        ValueError: onnxruntime cannot read the file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__()
        check_packages(ONNX)
        import onnxruntime

        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = ERRORS_ONLY
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common class but this
            raise ValueError(f"onnxruntime cannot read {path} ({_first_line(error)})") from error
        self.path = Path(path)
        self.header: dict[str, Any] = read_header(self.session.get_modelmeta().custom_metadata_map)
        """What :func:`ien.export` wrote about the model: its size, and for a run its settings."""
        (self._input,) = [each.name for each in self.session.get_inputs()]

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the only tensor that the model returns, or a tuple of them."""
        try:
            arrays = self.session.run(None, {self._input: images.detach().cpu().numpy()})
        except Exception as error:
            raise ValueError(
                f"{self.path} fails on images {tuple(images.shape)} of {images.dtype} ({_first_line(error)})"
            ) from error
        return _unpacked([torch.from_numpy(array) for array in arrays])

    def extra_repr(self) -> str:
        return str(self.path)


class OpenVinoModel(nn.Module):
    """An ONNX file, run by openvino on the CPU in full precision.

    Raises:
        ValueError: openvino cannot read the file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__()
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # else bfloat16, where the processor has it
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        try:
            self.compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        except RuntimeError as error:  # it has fewer operations than onnxruntime
            reason = " ".join(str(error).split())[-MAX_REASON_LENGTH:]  # it ends with the operation
            raise ValueError(f"openvino cannot read {path} (… {reason})") from error

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the only tensor that the model returns, or a tuple of them."""
        found = self.compiled([images.detach().cpu().numpy()])
        tensors = []
        for i in range(len(self.compiled.outputs)):
            tensors.append(torch.from_numpy(found[i].copy()))  # its memory is used again
        return _unpacked(tensors)


def has_openvino() -> bool:
    """Return whether openvino is installed."""
    return importlib.util.find_spec("openvino") is not None


def program_model(path: Path) -> nn.Module:
    """Return the module of a .pt2 file."""
    return torch.export.load(path).module()


def weights_model(path: Path, like: nn.Module) -> nn.Module:
    """Return a copy of a module with the weights of a .safetensors file."""
    from safetensors.torch import load_file

    copied = copy.deepcopy(like)
    with torch.no_grad():
        for tensor in copied.state_dict().values():
            tensor.zero_()  # nothing of the module itself is left to hide what the file lacks
    copied.load_state_dict(load_file(path))
    return copied


def _unpacked(tensors: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    if len(tensors) == 1:
        return tensors[0]
    return tuple(tensors)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_REASON_LENGTH]
