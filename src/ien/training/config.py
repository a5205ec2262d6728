"""What determines a run: one frozen dataclass with a section for each part of it.

    Config
      data        which images, and how they are augmented
      network     which network, and how wide
      objective   which transformations, and what makes the network equivariant under them
      optimizer   how a gradient becomes a step
      schedule    how long, and how fast
      machine     where it is computed

The name of a field is unique across sections, so that ``beta`` means ``objective.beta`` wherever
people write it: ``--set beta=0.3``, the rows of a table, the name of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from .._text import nearest, short_repr
from ..groups.members import check_regular, permutes_members
from ..loss.feature_groups import FeatureGroups
from .fields import Section, field_types, is_section, setting
from .sections import MAX_SEED, Data, Machine, Network, Objective, Optimizer, Schedule

__all__ = ["MACHINE", "Config", "Entry", "changed", "differences", "entries", "flat", "locate"]

C = TypeVar("C", bound="Config")

DIGIT_NETS = ("cnn3", "sesn-vector", "sesn-scalar", "dss", "ss-cnn", "ss-cnn-published")
"""Networks that see a digit at one of two sizes."""
DIGIT_SIZES = (28, 56)
MACHINE = ("device", "threads", "workers", "processes", "channels_last", "checkpoint_minutes")
"""Fields that say how a run is computed and not what it is: they change rounding, time and, with
several processes, what a BatchNorm sees."""
SHORT_NAMES = {"optimizer": "algorithm", "schedule": "shape"}
"""A section named alone means its first choice: ``--set optimizer=sgd``."""


@dataclass(frozen=True)
class Config(Section):
    """Every setting of a run. The defaults are the paper's Rot-MNIST run of IEN.

    >>> config = Config.of("rot-mnist/ien-r4", "small", beta=0.3, epochs=80)
    >>> config.objective.beta, config.schedule.epochs
    (0.3, 80)
    """

    TASK: ClassVar[str] = "classify"
    """The kind of task that is trained, a key of :data:`ien.training.task.KINDS`."""

    experiment: str
    preset: str
    seed: int = setting(
        1, "Seed of the initial weights, the order of images and the elements drawn.", low=0, high=MAX_SEED
    )
    weights_of: str = setting(
        "", "Test the weights of this experiment instead of training; it is trained first if need be."
    )
    data: Data = field(default_factory=Data)
    network: Network = field(default_factory=Network)
    objective: Objective = field(default_factory=Objective)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.network.model
        # checks across sections; each section has checked its own fields when it was made
        if model in DIGIT_NETS and self.data.image_size not in DIGIT_SIZES:
            raise ValueError(f"image_size must be 28 or 56 for {model}; got {self.data.image_size}")
        self._check_steerable()
        self._check_tie()
        self._check_members()

    @classmethod
    def of(cls: type[C], experiment: str, preset: str, **values: Any) -> C:
        """Make a configuration from some of its fields by name; the others keep their default."""
        return changed(cls(experiment, preset), values)

    @classmethod
    def from_json(cls: type[C], content: Mapping[str, Any]) -> C:
        """Make a configuration from what :meth:`to_json` gave.

        Fields that are missing keep their default: a file may be older than they are.

        Raises:
            ValueError: A field is unknown, or its value has the wrong type.
        """
        values: dict[str, Any] = {}
        kinds = field_types(cls)
        for name, value in content.items():
            if name == "task":
                continue  # chose this class
            if name not in kinds:
                raise ValueError(f"unknown field {name}; {nearest(name, kinds)}")
            if is_section(kinds[name]):
                value = _section_from_json(name, kinds[name], value)
            values[name] = value
        for name in ("experiment", "preset"):
            if name not in values:
                raise ValueError(f"no {name}")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them, section by section, after the name of the task."""
        return {"task": self.TASK, **asdict(self)}

    @property
    def row(self) -> str:
        """The row of the table, without the name of the table."""
        return self.experiment.split("/")[-1]

    @property
    def seed_of_data(self) -> int:
        """The seed of a generated data set."""
        if self.data.data_seed is None:
            return self.seed
        return self.data.data_seed

    def _check_steerable(self) -> None:
        """The fields of a steerable network are those of one group, and are computed in float32."""
        network = self.network
        if not network.steerable:
            return
        if self.machine.precision == "bf16":
            raise ValueError(f"{network.model} does not support precision=bf16: leave it at float32")
        first, *others = self.objective.groups
        # Network has checked that a steerable network has one size
        (size,) = FeatureGroups.of(network.feature_groups).sizes
        if others or size != len(first):
            raise ValueError(
                f"{network.model} under {self.objective.group} needs feature groups of {len(first)}, one "
                f"channel for each element of a single group; got {network.feature_groups}"
            )

    def _check_tie(self) -> None:
        """The weights of a plain network can be tied under one group that has exact elements."""
        tie = self.objective.tie
        if tie == "never":
            return
        plain = self.network.PLAIN
        if self.network.model not in plain:
            raise ValueError(f"tie={tie} needs a plain network, {', '.join(plain)}; got {self.network.model}")
        first, *others = self.objective.tying_groups
        # the identity, always exact, comes first: something else must be
        if others or not any(first.exact[1:]):
            given = self.objective.tie_group or self.objective.group
            raise ValueError(
                f"tie={tie} needs a single group with a half turn, quarter turn or flip, such as rot4; "
                f"got {given}; with tie_group=rot4 the loss may have any group"
            )

    def _check_members(self) -> None:
        """Where channels of feature groups are permuted, a group must say how."""
        if self.objective.tie != "never":
            why = f"tie={self.objective.tie}"
        elif self.objective.action == "regular" and self.objective.beta:
            why = "action=regular"
        else:
            return
        every = {**self.objective.groups, **self.objective.tying_groups}
        # groups that permute nothing, such as scale, may stand beside one that does
        groups = [group for group in every if permutes_members(group)]
        sizes = FeatureGroups.of(self.network.feature_groups).sizes
        for group in groups or every:
            try:
                check_regular(group, sizes)
            except ValueError as error:
                raise ValueError(f"{why}: {error}") from None


class Entry(NamedTuple):
    """A field of a configuration, whichever section holds it."""

    section: str | None
    """None for the fields of :class:`Config` itself."""
    name: str
    kind: Any
    """Its type."""
    help: str


def entries(config: type[Config]) -> dict[str, Entry]:
    """Return every field by its own name, in the order of the sections."""
    found: dict[str, Entry] = {}
    kinds = field_types(config)
    for each in fields(config):
        kind = kinds[each.name]
        if not is_section(kind):
            found[each.name] = Entry(None, each.name, kind, each.metadata.get("help", ""))
            continue
        inner = field_types(kind)
        for one in fields(kind):
            # people write --set beta=0.3 without the section, so no two fields may share a name
            assert one.name not in found, f"two fields are called {one.name}"
            found[one.name] = Entry(each.name, one.name, inner[one.name], one.metadata["help"])
    return found


def locate(known: Mapping[str, Entry], name: str) -> Entry:
    """Find a field among :func:`entries` by its name, ``beta`` or ``objective.beta``.

    Raises:
        ValueError: There is none; the message ends with the nearest names.
    """
    section, dot, leaf = name.rpartition(".")
    if not dot:
        leaf = SHORT_NAMES.get(name, name)
    if leaf in known:
        entry = known[leaf]
        if dot and entry.section != section:
            right = f"{entry.section}.{leaf}" if entry.section else leaf
            raise ValueError(f"there is no field {name!r}; did you mean {right}?")
        return entry
    inside = [entry.name for entry in known.values() if entry.section == name]
    if inside:
        raise ValueError(f"{name} is a section: set one of its fields, such as {name}.{inside[0]}")
    raise ValueError(f"there is no field {name!r}; {nearest(leaf, known)}")


def changed(config: C, values: Mapping[str, Any]) -> C:
    """Return ``config`` with other values for some fields, named as in :func:`locate`.

    All of them change at once, since some values are valid only together.

    >>> changed(Config("rot-mnist/ien-r4", "paper"), {"beta": 0.3, "data.shift": 2}).data.shift
    2
    """
    new: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    known = entries(type(config))
    for name, value in values.items():
        entry = locate(known, name)
        if entry.section is None:
            new[entry.name] = value
        else:
            inside.setdefault(entry.section, {})[entry.name] = value
    # one replace() per section, which checks its fields together
    for section, its_values in inside.items():
        new[section] = replace(getattr(config, section), **its_values)
    return replace(config, **new)


def flat(config: Config) -> dict[str, Any]:
    """Return the value of every field by its own name."""
    values = {}
    for name, entry in entries(type(config)).items():
        holder: Section = config
        if entry.section is not None:
            holder = getattr(config, entry.section)
        values[name] = getattr(holder, name)
    return values


def differences(config: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Return the fields that differ, each with its value in ``config`` and in ``other``."""
    theirs = flat(other)
    found = {}
    # get(): the other may be of another class, with other fields
    for name, value in flat(config).items():
        if value != theirs.get(name):
            found[name] = value, theirs.get(name)
    return found


def _section_from_json(name: str, kind: type[Section], content: Any) -> Section:
    if not isinstance(content, Mapping):
        raise ValueError(f"{name} must be a section with fields of its own; got {short_repr(content)}")
    known = field_types(kind)
    for field_name in content:
        if field_name not in known:
            raise ValueError(f"unknown field {name}.{field_name}; {nearest(field_name, known)}")
    return kind(**content)
