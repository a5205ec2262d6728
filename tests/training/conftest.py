"""One whole toy run, which many tests compare theirs with."""

import pytest

import ien.data
from tests.helpers import toy


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run that nothing disturbed; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ien.data.DATASETS, "toy", toy.DATASETS["toy"])
        toy.run_in(folder)
    return folder
