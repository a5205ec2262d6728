"""Tiny runs, trained once; not to be changed."""

import pytest

import ien.data
from ien.report.opened import open_runs
from tests.helpers import toy
from tests.helpers.toy_runs import MEASURED, make_runs, make_segment_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The folders of three runs, the last of which scales."""
    return make_runs(tmp_path_factory)


@pytest.fixture(scope="session")
def segment_runs(tmp_path_factory):
    """The folders of two runs that segment, the second of which is tied."""
    pytest.importorskip("PIL.Image", reason="masks are read with pillow: pip install 'ien[plots]'")
    return make_segment_runs(tmp_path_factory)


@pytest.fixture(scope="session")
def opened_runs(runs):
    """Their networks, on the first images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        return open_runs(runs, count=MEASURED)
