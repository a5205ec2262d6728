"""Headers: what a file says about itself comes back from each format; damaged ones are empty."""

import pytest

from ien.exporting.write import read_header


@pytest.mark.parametrize("metadata", [None, {}, {"ien": "{"}, {"ien": "[1]"}, {"other": "{}"}])
def test_what_is_not_our_header_is_an_empty_one(metadata) -> None:
    assert read_header(metadata) == {}
