"""Recipes that do not fit the data."""

import pytest

from comatch.errors import UserError


def test_images_too_small_for_crops(build_run):
    with pytest.raises(UserError, match=r"comatch learns from crops.*image_size=8"):
        build_run(image_size=7)
