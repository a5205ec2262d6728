"""The state of an adaptation in a file, to go on from it later."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import check_regular, digest, replace_file

__all__ = ["Checkpoint", "weights_digest"]

CHECKPOINT = "adapting.pt"


class Checkpoint:
    """The state of training in a file of a folder; without a folder, nothing is kept."""

    def __init__(self, folder: str | PathLike[str] | None, settings: dict[str, Any]) -> None:
        self.path: Path | None = None
        self.settings = settings
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.path = Path(folder) / CHECKPOINT

    def load(self, student: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        """Restore the student and its optimizer; return the steps and seconds they had, or zeros.

        Raises:
            ValueError: The file is damaged, or from other settings or another model.
            OSError: It may not be read.
        """
        if self.path is None or not self.path.exists():
            return 0, 0.0
        check_regular(self.path)  # a pipe would be waited for without end
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            found = state["settings"]
        except OSError:
            raise  # nobody should remove what they may not read
        except Exception as error:  # a damaged file can provoke anything
            raise ValueError(
                f"{self.path} cannot be read ({type(error).__name__}): remove it to begin again"
            ) from error
        for name, wanted in self.settings.items():
            if found.get(name) != wanted:
                if name == "model":
                    raise ValueError(
                        f"{self.path} is of another model, or of one with other weights: use the same, or "
                        f"another folder"
                    )
                raise ValueError(
                    f"{self.path} was made with {name}={found.get(name)}, not {wanted}: use the same, or "
                    f"another folder"
                )
        try:
            student.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"]), float(state["seconds"])
        except Exception as error:
            raise ValueError(
                f"{self.path} is of another model ({type(error).__name__}): use another folder"
            ) from error

    def save(self, student: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
        """Replace the file."""
        if self.path is None:
            return
        state = {
            "settings": self.settings,
            "model": student.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "seconds": seconds,
        }
        replace_file(self.path, lambda path: torch.save(state, path))


def weights_digest(model: nn.Module) -> str:
    """Return a digest of the weights of a model: names, types, shapes and numbers."""
    parts = []
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):  # a module may add a state of its own
            parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            numbers = tensor.detach().cpu().contiguous().flatten()
            parts.append(numbers.view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest(*parts)
