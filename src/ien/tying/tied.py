"""What make_equivariant returns: the table of a tied model, its slack and its checks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrize

from .._text import MODEL_ITSELF, columns, html_table, number, short_count, short_repr, type_name
from .listening import Evidence, Listener
from .parametrized import TiedNorm, parametrizations_of
from .parts import Parts
from .plan import errors_of
from .planned import Plan, TiedLayer
from .slack import RATE, Remainder, relative_size, slack_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Tied", "count_parameters"]


class Tied:
    """A tied model: what became of each layer, in the order they run; prints as a table.

    >>> net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 2, 3))
    >>> tied = ien.make_equivariant(net, "rot4", torch.rand(2, 1, 9, 9))
    >>> print(str(tied).splitlines()[0])
    equivariant to rot4: stores 226 of 898 numbers (25%)
    >>> max(tied.errors.values()) < 1e-10
    True
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        plain_count: int,
        slack: Mapping[str, parametrize.ParametrizationList] | None = None,
        listening: Collection[str] = (),
    ) -> None:
        """Describe a model that was just tied.

        Args:
            model: The model.
            plan: What was tied in it.
            plain_count: How many parameters it had before.
            slack: The parametrizations of weights with slack, by the name of their layer.
            listening: The layers among these whose remainder may learn once the data ask for it.
        """
        self.model = model
        self.plan = plan
        self.plain_count = plain_count
        self._with_slack = dict(slack or {})
        self._listener = None
        self._parts: Parts | None = None
        """Splits gradients, if an epoch has too few steps."""
        self._warned_of_epoch = False
        self._penalised = False
        """Whether the penalty was asked for since the last call of :meth:`listen`."""
        self._warned_of_penalty = False
        if listening:
            self._listener = Listener({name: self.remainders[name] for name in listening})

    @property
    def layers(self) -> dict[str, TiedLayer]:
        """What became of each layer: its feature groups, how far its weights moved, its errors."""
        return self.plan.layers

    @property
    def errors(self) -> dict[str, float]:
        """The relative error of what the model returns under each element, by its label."""
        return self.plan.errors

    @property
    def share(self) -> float:
        """The numbers that tied weights are made of, as a share of the plain model's parameters."""
        return self._stored / self.plain_count

    @property
    def _stored(self) -> int:
        """How many numbers are stored and trained, besides the remainders."""
        remainders = 0
        for module in self.model.modules():
            if isinstance(module, Remainder):
                remainders += module.free.numel()
        return count_parameters(self.model) - remainders

    def penalty(self) -> Tensor:
        """Return what to add to the loss: Σ over layers of ‖r‖² / (s ‖P W‖²), with slack s.

        It is 0 for a model without slack, and with ``slack="auto"`` until the remainders learn.

        Raises:
            ValueError: :func:`make_plain` has taken the remainders away.
        """
        self._check_not_plain()
        self._penalised = True
        penalty = next(self.model.parameters()).new_zeros(())
        if self._listener is not None and not self._listener.opened:
            return penalty  # all remainders count as 0
        for name, remainder in self.remainders.items():
            penalty = penalty + relative_size(self._with_slack[name]) / remainder.slack
        return penalty

    def listen(self, epoch: int | None, views: int = 1) -> None:
        """Let the remainders learn as soon as images say that they break the symmetry.

        For ``slack="auto"``: call it in every step, between ``loss.backward()`` and
        ``optimizer.step()``, before gradients are clipped. Under a gradient scaler, unscale them
        first.

        In epochs of fewer than 16 steps it hears batches in parts, from the second epoch on, which
        makes a step half as long again: the first dimension of what layers are given must be that
        of the images.

        Count epochs up, from 0 or 1. With the same number in every epoch, images that come again
        would agree with themselves, and remainders would learn from data that have the symmetry.

        Args:
            epoch: Its number. Within an epoch no image may be seen twice. None for a step with
                images of two epochs, to which it does not listen.
            views: How often each image is in the batch: ``out.views`` with ``EquivarianceLoss``.

        Raises:
            TypeError: ``epoch`` or ``views`` is not a whole number.
            ValueError: It is negative, the model has no ``slack="auto"``, or :func:`make_plain` has
                taken the remainders away.
            RuntimeError: No layer has a gradient: ``loss.backward()`` comes first.
        """
        listener = self._listener
        if listener is None:
            raise ValueError('there is nothing to listen to: pass slack="auto" to make_equivariant')
        self._check_not_plain()
        _check_listening(epoch, views)
        if epoch is not None and epoch < listener.epoch and not self._warned_of_epoch:
            self._warned_of_epoch = True
            warnings.warn(
                f"tied.listen was given epoch {epoch} after epoch {listener.epoch}: count epochs up, so "
                f"that no image is heard twice under one number",
                stacklevel=2,
            )
        if listener.opened and not self._penalised and not self._warned_of_penalty:
            self._warned_of_penalty = True
            warnings.warn(
                "remainders learn, and nothing holds them small: add tied.penalty() to the loss",
                stacklevel=2,
            )
        self._penalised = False
        if not listener.opened:
            shares: list[dict[str, Tensor]] = []
            if self._parts is not None:
                shares = self._parts.take()
            if epoch is not None:
                listener.views = int(views)
                listener.listen(self._heard(listener, shares), int(epoch))
            if not listener.opened:
                for remainder in listener.remainders.values():
                    remainder.free.grad = None  # the optimizer leaves it as it is
        self._split_batches(listener)

    def _heard(self, listener: Listener, shares: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the gradient of a batch by layer, or that of each of its parts."""
        gradients = self.gradients()
        if not shares:
            return [{name: gradients[name] for name in listener.remainders}]
        pieces = []
        for share in shares:
            piece = {}
            for name in listener.remainders:
                piece[name] = share.get(name, torch.zeros_like(gradients[name]))
                if distributed.is_available() and distributed.is_initialized():
                    distributed.all_reduce(piece[name])  # as torch does with whole gradients
            pieces.append(piece)
        return pieces

    def _split_batches(self, listener: Listener) -> None:
        """Split batches into as many parts as the listener asks for, as long as it listens."""
        count = 1
        if not listener.opened:
            count = listener.parts
        if self._parts is not None and self._parts.count != count:
            self._parts.close()
            self._parts = None
        if self._parts is None and count > 1:
            self._parts = Parts(self._layers_of(listener), count)
        if self._parts is not None:
            self._parts.views = listener.views

    def _layers_of(self, listener: Listener) -> dict[str, list[nn.Module]]:
        """Return the modules that have each remainder: several may share one."""
        found: dict[str, list[nn.Module]] = {}
        for name, remainder in listener.remainders.items():
            found[name] = []
            for module in self.model.modules():
                for parametrizations in parametrizations_of(module).values():
                    if parametrizations[-1] is remainder:
                        found[name].append(module)
        return found

    @property
    def listens(self) -> bool:
        """Whether some remainder waits for the data, as with ``slack="auto"``."""
        return self._listener is not None

    @property
    def remainders(self) -> dict[str, Remainder]:
        """The remainders of weights with slack, by the name of their layer."""
        found = {}
        for name, parametrizations in self._with_slack.items():
            remainder: Any = parametrizations[-1]
            found[name] = remainder
        return found

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients in the remainders after ``loss.backward()``, by layer.

        A layer that did not run, or was frozen since, has a gradient of 0.
        """
        found = {}
        for name, remainder in self.remainders.items():
            if remainder.free.grad is not None:
                found[name] = remainder.free.grad
        if not found:
            raise RuntimeError(
                "no layer has a gradient: call tied.listen(epoch) after loss.backward() and before "
                "optimizer.zero_grad()"
            )
        for name, remainder in self.remainders.items():
            found.setdefault(name, torch.zeros_like(remainder.free))
        return found

    def evidence(self) -> dict[str, Evidence]:
        """Return what was heard in this epoch: of each layer by name, and of all of them as ``""``.

        After the remainders began to learn, it is what was heard until then.
        """
        if self._listener is None:
            return {}
        names = ["", *self._listener.remainders]
        return {name: self._listener.evidence(name) for name in names}

    def slack(self) -> dict[str, float]:
        """Return ‖r‖ / ‖P W‖ of each layer: where do these data break the symmetry?

        Of a weight that is nearly 0, ‖P W‖² counts as 0.01 for each output channel.

        Raises:
            ValueError: :func:`make_plain` has taken the remainders away.
        """
        self._check_not_plain()
        return dict.fromkeys(self.layers, 0.0) | slack_of(self.model)

    def _is_plain(self) -> bool:
        """Return whether a model with slack has lost all its remainders, as by make_plain."""
        if not self._with_slack:
            return False
        return not any(isinstance(module, Remainder) for module in self.model.modules())

    def _check_not_plain(self) -> None:
        if self._is_plain():
            raise ValueError(
                "the model has ordinary weights now, and no remainders: ask before ien.make_plain(model), or "
                "use ien.plain_copy(model), which leaves the model as it is"
            )

    def plot(self) -> Figure:
        """Draw :meth:`slack` as a bar for each layer that has a remainder.

        Returns:
            A matplotlib figure; ``figure.savefig("slack.png")`` writes it.

        Raises:
            ModuleNotFoundError: matplotlib is not installed; the message says how to install it.
            ValueError: No layer has slack.
        """
        if not self._with_slack:
            raise ValueError('no layer has slack: pass slack="auto" or a number to make_equivariant')
        # from a later folder, as Report.plot: there is one drawer of plots, and it is there
        from ..measuring.report import png_of
        from ..report.plots.slack import plot_slack

        values = self.slack()
        figure = plot_slack({name: values[name] for name in self.remainders}, str(self.plan.group))
        # a notebook shows figures of pyplot by itself, and others by this method
        figure._repr_png_ = partial(png_of, figure)  # type: ignore[attr-defined]
        return figure

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer: remainders learn at a tenth of the rate.

        Args:
            lr: The learning rate of all other parameters.
        """
        # a bool is a number to Python, but nobody means it
        if isinstance(lr, bool) or not isinstance(lr, Real | Tensor) or not 0 <= float(lr) < math.inf:
            raise ValueError(f"lr must be a number of 0 or more, such as 1e-3; got {short_repr(lr)}")
        remainders = [remainder.free for remainder in self.remainders.values()]
        slow = {id(parameter) for parameter in remainders}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in slow]
        groups: list[dict[str, Any]] = [{"params": others, "lr": lr}]
        if remainders:
            groups.append({"params": remainders, "lr": RATE * lr, "weight_decay": 0.0})
        return groups

    def state_dict(self) -> dict[str, Any]:
        """Return what ``slack="auto"`` has heard, to be saved beside the model's own state."""
        if self._listener is None:
            return {}
        return self._listener.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on listening from what :meth:`state_dict` returned.

        Raises:
            TypeError: ``state`` is no mapping.
            ValueError: It belongs to a model with other layers, or with other slack.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be what tied.state_dict() returned; got {type_name(state)}")
        if state and self._listener is None:
            raise ValueError('this state is of a model with slack="auto", and this model has another slack')
        if self._listener is not None:
            self._listener.load_state_dict(state)
            self._split_batches(self._listener)

    def check(
        self, images: Tensor, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Run the model again, and return its relative error under each element.

        Use it after a change to the model, such as a new head, or at another size of images.

        Args:
            images: Images (B, C, H, W).
            args: What the model is called with after the images.
            kwargs: What else it is called with.

        Raises:
            ValueError: If the model is no longer equivariant; it names the layer.
        """
        modules = set(self.model.modules())
        for norm, _ in self.plan.norms:
            if norm not in modules or not isinstance(norm, TiedNorm):
                called = type(norm).__name__.removeprefix("Tied")
                raise ValueError(
                    f"a {called} is no longer tied: it was replaced or converted after make_equivariant"
                )
        errors, problem = errors_of(self.model, self.plan, images, args, kwargs)
        if problem and any(slack_of(self.model).values()):
            problem = f"weights have left the symmetry, as slack allows (tied.slack()): {problem}"
        if problem:
            raise ValueError(problem)
        return errors

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self._rows()), *self._notes()])

    def __repr__(self) -> str:
        worst = max(self.errors.values(), default=None)
        return f"Tied({self._title()}; {len(self.layers)} layers; error {number(worst)})"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self._rows(), self._notes())

    def _title(self) -> str:
        return (
            f"equivariant to {self.plan.group}: stores {short_count(self._stored)} of "
            f"{short_count(self.plain_count)} numbers ({self.share:.0%})"
        )

    def _notes(self) -> list[str]:
        """Return what the table does not say."""
        legend = (
            "in, out: size of feature groups; moved: how far tied weights are from those before (0 to 1); "
            "error: relative, under quarter turns and flips (0 is equivariant)"
        )
        if self._resamples():
            legend += "; between: the same under all other elements"
        notes = [legend]
        if self._with_slack:
            notes.append("slack: ‖r‖ / ‖P W‖, how far a weight has left the symmetry")
        if self._listener is not None:
            notes.append(self._listener.status())
        if self.plan.unused:
            notes.append(f"did not run, and were not changed: {', '.join(self.plan.unused)}")
        if self.plan.untied:
            notes.append(f"frozen, and not tied: keep them frozen: {', '.join(self.plan.untied)}")
        return notes

    def _resamples(self) -> bool:
        """Return whether the group has elements other than quarter turns and flips."""
        return any(layer.between is not None for layer in self.layers.values())

    def _rows(self) -> list[list[str]]:
        """Return the table: a header, and a row for each layer."""
        header = ["layer", "in", "out", "moved", "error"]
        resamples = self._resamples()
        if resamples:
            header.append("between")
        if self._with_slack:
            header.append("slack")
            slack: dict[str, float] = {}
            if not self._is_plain():
                slack = self.slack()
        rows = [header]
        for name, layer in self.layers.items():
            row = [name or MODEL_ITSELF, layer.before, layer.after]
            row += [number(layer.distance), number(layer.exact)]
            if resamples:
                row.append(number(layer.between))
            if self._with_slack:
                row.append(number(slack.get(name)))
            rows.append(row)
        return rows


def _check_listening(epoch: object, views: object) -> None:
    """Refuse what cannot be the number of an epoch, or of views."""
    if callable(epoch):
        raise TypeError(
            "listen takes the number of the epoch: no held-out images are needed, and no function; call "
            "tied.listen(epoch) between loss.backward() and optimizer.step()"
        )
    # a bool is a number to Python, but nobody means it
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, Integral)):
        raise TypeError(
            f"listen takes the number of the epoch, such as 0, or None for a step with images of two epochs; "
            f"got {short_repr(epoch)}"
        )
    if isinstance(views, bool) or not isinstance(views, Integral):
        raise TypeError(f"views must be a whole number, such as out.views; got {short_repr(views)}")
    if epoch is not None and int(epoch) < 0:
        raise ValueError(f"the number of an epoch is 0 or more; got {epoch}")
    if int(views) < 1:
        raise ValueError(f"views must be 1 or more, the image itself among them; got {views}")


def count_parameters(model: nn.Module) -> int:
    """Count the numbers that a model learns; for tied weights, those they are computed from."""
    return sum(parameter.numel() for parameter in model.parameters())
