"""Learners in processes of their own, without Ray."""

from collections.abc import Iterator

import pytest

from .group import Group


@pytest.fixture(scope="package")
def group() -> Iterator[Group]:
    group = Group()
    yield group
    group.close()
