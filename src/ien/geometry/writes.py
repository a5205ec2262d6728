"""Writes: what a tensor holds after an operation wrote into it, or into a view of it.

A view and the tensor it belongs to (its root) share their elements, but each has facts of its own.
A write into a view changes the facts of the view and of the root; every other view of that root is
then outdated, which :func:`.facts.is_out_of_sight` sees in the number of writes.
"""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from .dimensions import LOST_AXIS, OTHER_AXIS, Dim, dimension, is_constant, length, places
from .facts import Call, Facts, facts_of
from .notes import Notes

__all__ = ["write"]

Dims = tuple[Dim, ...]


def write(notes: Notes, call: Call, target: Any, new: Facts) -> None:
    """Let the tensor ``target``, and the tensor that it is a view of, hold ``new``."""
    if not isinstance(target, FakeTensor):
        if new.places:
            notes.report_unknown(call, new, "it writes a map into a tensor that is not the model's")
        return
    view = facts_of(target)
    root = view.root or view
    root_dims = new.dims
    if root is not view:
        root_dims = _dims_of_root(notes, call, root, view, new)
    # x.relu_() and the like change nothing that is known: other views of the root stay valid
    if (view.dims, view.pending, root.dims) != (new.dims, new.pending, root_dims):
        root.num_writes += 1
    root.dims = root_dims
    root.has_free_channels = root.has_free_channels and new.has_free_channels
    root.value = None  # constants are followed only as long as nothing is written into them
    # the view is what the operation returned, and up to date
    view.dims = new.dims
    view.pending = new.pending
    view.pitch = new.pitch
    view.node = new.node
    view.name = ""
    view.num_writes = root.num_writes
    view.has_free_channels = new.has_free_channels
    view.value = None
    view.is_step_result = False


def _dims_of_root(notes: Notes, call: Call, root: Facts, view: Facts, new: Facts) -> Dims:
    """Return the dimensions of ``root`` after ``new`` was written into its part ``view``.

    Four cases are followed: no places are involved; the view keeps its dimensions; a value that is
    the same everywhere is written; or a map is drawn on an empty canvas. Anything else loses the
    places.
    """
    if new.pending is not root.pending:
        notes.report_pending(new)
        if new.places:
            notes.report_pending(root)
    if not places([*root.dims, *new.dims]):
        return _kept_dims(root, view, new)
    # if the pending steps differ, the view is a part of the map that is not symmetric
    if view.pending is root.pending:
        if new.dims == view.dims or _is_uniform(view, new):
            return _kept_dims(root, view, new)
        if _is_drawn_on_canvas(root, view, new):
            return _dims_of_drawing(root, view, new)
    on_places = root if root.places else new
    notes.report_unknown(call, on_places, "it writes into a part of a map")
    return tuple(dimension(LOST_AXIS, length(d)) for d in root.dims)


def _has_same_dimensions(root: Facts, view: Facts, new: Facts) -> bool:
    """Return whether dimension i of what is written lies along dimension i of the root."""
    return not view.is_rearranged and len(new.dims) == len(root.dims)


def _kept_dims(root: Facts, view: Facts, new: Facts) -> Dims:
    """Return the dimensions of ``root``, except that those which were constant no longer are."""
    is_aligned = _has_same_dimensions(root, view, new)
    kept = []
    for i, d in enumerate(root.dims):
        is_unchanged = is_aligned and new.dims[i] == d
        if not places([d]) and not is_unchanged:
            d = dimension(OTHER_AXIS, length(d))
        kept.append(d)
    return tuple(kept)


def _is_uniform(view: Facts, new: Facts) -> bool:
    """Return whether the same value is written to all places of the view."""
    if new.places:
        return False
    for new_dim, view_dim in zip(new.dims, view.dims, strict=True):
        if places([view_dim]) and not is_constant(new_dim):
            return False
    return True


def _is_drawn_on_canvas(root: Facts, view: Facts, new: Facts) -> bool:
    """Return whether a whole map is written into a tensor without places, such as zeros."""
    if root.places or not _has_same_dimensions(root, view, new):
        return False
    for new_dim, root_dim in zip(new.dims, root.dims, strict=True):
        # rows must cover all rows of a canvas that looks the same from everywhere
        fills_constant = is_constant(root_dim) and length(new_dim) == length(root_dim)
        if places([new_dim]) and not fills_constant:
            return False
    return True


def _dims_of_drawing(root: Facts, view: Facts, new: Facts) -> Dims:
    """Return the dimensions of a canvas that gets the rows and columns of the map."""
    drawn = []
    for new_dim, kept_dim in zip(new.dims, _kept_dims(root, view, new), strict=True):
        if places([new_dim]):
            drawn.append(new_dim)
        else:
            drawn.append(kept_dim)
    return tuple(drawn)
