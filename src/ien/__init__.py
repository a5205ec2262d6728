"""Make an ordinary convolutional network equivariant by training it that way.

The package, in the order in which it imports and in which to read it:

    _text.py        near names, commands, numbers, tables, progress bars: how things are written
    _files.py       files written whole or not at all, seeded generators

    groups/         what acts: groups of transformations
    loss/           the paper: feature groups, capture, error, objective
    measuring/      how equivariant is a model: measure()
    geometry/       why it is not more: doctor()
    tying/          weights that are equivariant by construction
    adapting/       a model that is trained already: average, canonicalize, adapt
    exporting/      a trained model -> ONNX, torch.export, safetensors, each checked
    models/         the networks of the paper
    baselines/      built-in equivariance: steerable, SESN, DSS, SS-CNN
    data/           files on disk -> tensors
    training/       configuration, tasks, the loop, the run folder
    report/         records -> tables, plots and pages
    tracking/       all of tracking
    experiments/    every row of the paper's tables and of our studies, as values; the queue
    cli/            the command line, a file for each family of commands
"""

import importlib as _importlib
from typing import Any as _Any

from ._text import nearest as _nearest
from .adapting.adapt import adapt
from .adapting.average import GroupAverage
from .adapting.canonicalize import Canonicalize
from .adapting.compare import Comparison, compare
from .geometry.doctor import Diagnosis, Finding, doctor
from .groups.families import custom, group, reflection, rotation, scale
from .groups.group import Group
from .loss.capture import Features, capture
from .loss.feature_groups import FeatureGroups, GroupPool, group_pool
from .loss.objective import Equivariance, EquivarianceLoss, equivariance_loss
from .measuring.measure import measure
from .measuring.metric import EquivarianceError
from .measuring.report import ElementReport, LayerReport, OutputReport, Report
from .tying.symmetry import Symmetry, symmetry
from .tying.tie import make_equivariant, make_plain, plain_copy
from .tying.tied import Tied

__all__ = [
    "Canonicalize",
    "Comparison",
    "Diagnosis",
    "ElementReport",
    "Equivariance",
    "EquivarianceError",
    "EquivarianceLoss",
    "Exported",
    "FeatureGroups",
    "Features",
    "Finding",
    "Group",
    "GroupAverage",
    "GroupPool",
    "LayerReport",
    "OutputReport",
    "Report",
    "Symmetry",
    "Tied",
    "adapt",
    "baselines",
    "callbacks",
    "capture",
    "compare",
    "custom",
    "data",
    "doctor",
    "equivariance_loss",
    "export",
    "group",
    "group_pool",
    "load",
    "make_equivariant",
    "make_plain",
    "measure",
    "models",
    "plain_copy",
    "reflection",
    "rotation",
    "scale",
    "symmetry",
    "tracking",
]
__version__ = "0.2.0"

# loaded when first used: name -> the module that it is, or module:attribute
_LAZY = {
    "baselines": ".baselines",
    "callbacks": ".measuring.callbacks",
    "data": ".data",
    "Exported": ".exporting.result:Exported",
    "export": ".exporting.export:export",
    "load": ".training:load",
    "models": ".models",
    "tracking": ".tracking",
}


def __getattr__(name: str) -> _Any:
    if name in _LAZY:
        path, _, attribute = _LAZY[name].partition(":")
        module = _importlib.import_module(path, __name__)
        return getattr(module, attribute) if attribute else module
    hint = ""
    if not name.startswith("_"):  # which tools ask for, and people do not
        hint = f"; {_nearest(name, __all__)}"
    raise AttributeError(f"module 'ien' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
