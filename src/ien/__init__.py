"""Make an ordinary convolutional network equivariant, or find out whether it is.

What to call first:

    ien.make_equivariant(model, "rot4", images)  exactly, for quarter turns; then train
    ien.measure(model, images, "rot4")           how equivariant is each layer?
    ien.doctor(model, input_size=(3, 224, 224))  what makes it impossible, and which sizes help?
    ien.symmetry(images, labels, "rot4")         do these data have this symmetry?
    ien.GroupAverage(model, "rot4")              a trained model; or Canonicalize, adapt
    ien.EquivarianceLoss("rot4", layers, 4)      the paper's loss: scale, and functions of your own

The package, in the order in which it imports and in which to read it:

    _text.py        near names, commands, numbers, tables, progress bars: how things are written
    _files.py       files written whole or not at all, seeded generators
    _stopping.py    Ctrl-C between two steps of training, not within one

    groups/         what acts: groups of transformations
    loss/           the paper: feature groups, capture, error, objective
    measuring/      how equivariant is a model: measure()
    geometry/       why it is not more: doctor()
    tying/          weights that are equivariant by construction
    adapting/       a model that is trained already: average, canonicalize, adapt, shrink
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
from typing import TYPE_CHECKING
from typing import Any as _Any

from ._text import no_attribute as _no_attribute

if TYPE_CHECKING:  # for editors and type checkers; in a program names load when they are first used
    from . import baselines, data, models, tracking
    from .adapting.adapt import adapt
    from .adapting.average import GroupAverage
    from .adapting.canonicalize import Canonicalize
    from .adapting.compare import compare
    from .adapting.comparison import Comparison
    from .adapting.shrinking.shrink import Shrunk, shrink
    from .exporting.export import export
    from .exporting.result import Exported
    from .geometry.doctor import Diagnosis, Finding, doctor
    from .groups.families import custom, group, reflection, rotation, scale
    from .groups.group import Group
    from .loss.capture import Features, capture
    from .loss.feature_groups import FeatureGroups, GroupPool, group_pool
    from .loss.objective import Equivariance, EquivarianceLoss, equivariance_loss
    from .measuring import callbacks
    from .measuring.layer_report import ElementReport, LayerReport, OutputReport
    from .measuring.measure import measure
    from .measuring.metric import EquivarianceError
    from .measuring.report import Report
    from .training import load
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
    "Shrunk",
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
    "shrink",
    "symmetry",
    "tracking",
]
__version__ = "0.2.0"

# loaded when first used, so that ien --help does without torch: module -> its public names
_MODULES = {
    ".adapting.adapt": ["adapt"],
    ".adapting.average": ["GroupAverage"],
    ".adapting.canonicalize": ["Canonicalize"],
    ".adapting.compare": ["compare"],
    ".adapting.comparison": ["Comparison"],
    ".adapting.shrinking.shrink": ["Shrunk", "shrink"],
    ".exporting.export": ["export"],
    ".exporting.result": ["Exported"],
    ".geometry.doctor": ["Diagnosis", "Finding", "doctor"],
    ".groups.families": ["custom", "group", "reflection", "rotation", "scale"],
    ".groups.group": ["Group"],
    ".loss.capture": ["Features", "capture"],
    ".loss.feature_groups": ["FeatureGroups", "GroupPool", "group_pool"],
    ".loss.objective": ["Equivariance", "EquivarianceLoss", "equivariance_loss"],
    ".measuring.measure": ["measure"],
    ".measuring.metric": ["EquivarianceError"],
    ".measuring.layer_report": ["ElementReport", "LayerReport", "OutputReport"],
    ".measuring.report": ["Report"],
    ".training": ["load"],
    ".tying.symmetry": ["Symmetry", "symmetry"],
    ".tying.tie": ["make_equivariant", "make_plain", "plain_copy"],
    ".tying.tied": ["Tied"],
}
_FOLDERS = {"baselines": ".baselines", "callbacks": ".measuring.callbacks", "data": ".data"}
_FOLDERS |= {"models": ".models", "tracking": ".tracking"}


def __getattr__(name: str) -> _Any:
    if name in _FOLDERS:
        return _importlib.import_module(_FOLDERS[name], __name__)
    for path, names in _MODULES.items():
        if name in names:
            value = getattr(_importlib.import_module(path, __name__), name)
            globals()[name] = value  # the next time it is found at once
            return value
    raise _no_attribute("ien", name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
