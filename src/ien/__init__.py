"""Make an ordinary convolutional network equivariant by training it that way.

The package, in the order in which it imports and in which to read it:

    _text.py        near names, numbers, tables and progress bars: how things are written
    _files.py       files written whole or not at all, seeded generators

    groups/         what acts: groups of transformations
    loss/           the paper: feature groups, capture, error, objective
    measuring/      how equivariant is a model: measure()
    geometry/       why it is not more: doctor()
    tying/          weights that are equivariant by construction
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

from .geometry.doctor import Diagnosis, Finding, doctor
from .groups.families import custom, group, reflection, rotation, scale
from .groups.group import Group
from .loss.capture import Features, capture
from .loss.feature_groups import FeatureGroups, GroupPool, group_pool
from .loss.objective import Equivariance, EquivarianceLoss, equivariance_loss
from .measuring.measure import measure
from .measuring.report import ElementReport, LayerReport, OutputReport, Report
from .tying.symmetry import Symmetry, symmetry
from .tying.tie import make_equivariant, make_plain, plain_copy
from .tying.tied import Tied

__all__ = [
    "Diagnosis",
    "ElementReport",
    "Equivariance",
    "EquivarianceLoss",
    "FeatureGroups",
    "Features",
    "Finding",
    "Group",
    "GroupPool",
    "LayerReport",
    "OutputReport",
    "Report",
    "Symmetry",
    "Tied",
    "baselines",
    "capture",
    "custom",
    "doctor",
    "equivariance_loss",
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
__version__ = "0.1.0"

# loaded when first used: name -> the folder that has it, or is it
_LAZY = {"baselines": "baselines", "load": "training", "models": "models", "tracking": "tracking"}


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ien' has no attribute {name!r}")
    module = _importlib.import_module(f".{_LAZY[name]}", __name__)
    return module if name == _LAZY[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
