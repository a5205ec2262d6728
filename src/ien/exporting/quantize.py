"""An ONNX file → the same in int8, with the ranges of its maps taken from images.

Weights and maps become whole numbers times a scale,

    w  ≈  s_w · q,   q in -64 … 63        a scale for each output channel
    h  ≈  s_h · (q - z),   q in 0 … 255   a scale for each layer, from the calibration images

Rounding is the same for every pixel and every orientation of a kernel: the members of a feature
group have the same largest weight and so the same scale. What is equivariant stays so, up to single
steps of rounding.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from .program import quiet_torch

__all__ = ["quantize"]

CALIBRATION_BATCH = 8
LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""What is computed in int8; sums and norms between them stay as they are."""


class _Batches:
    """Calibration images, as onnxruntime asks for them."""

    def __init__(self, images: Tensor) -> None:
        self._batches = iter(images.split(CALIBRATION_BATCH))

    def get_next(self) -> dict[str, object] | None:
        batch = next(self._batches, None)
        if batch is None:
            return None
        return {"images": batch.numpy()}


def quantize(path: Path, images: Tensor, out: Path) -> None:
    """Write the int8 version of an ONNX file.

    Args:
        path: The float file.
        images: Calibration images (N, C, H, W), as the model will see them.
        out: Where the new file goes.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(_Batches, CalibrationDataReader):  # type: ignore[misc]  # known only once it is imported
        pass

    with quiet_torch():
        quantize_static(
            str(path),
            str(out),
            Reader(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(LAYERS),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # 7 bits: sums of 8 bits overflow on processors without VNNI
            # scores keep their range: an image that is surer than any of these must not be clipped
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
        )
