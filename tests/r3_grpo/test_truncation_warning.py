import logging

import pytest

from .conftest import finish, plain_group, sample

STEPS = 10


@pytest.fixture
def warnings_of(stub, caplog):
    """What a run says whose answers turn from right to cut off."""

    def run(**ranking):
        algorithm = stub(ranking=ranking)
        with caplog.at_level(logging.WARNING, logger="algorithms"):
            for _ in range(STEPS):
                finish(algorithm, plain_group(sample([10], True), sample([11], True)))
            assert not caplog.records
            for _ in range(STEPS):
                finish(algorithm, plain_group(sample([10], truncated=True), sample([11], True)))
        return [record for record in caplog.records if record.levelno == logging.WARNING]

    return run


def test_it_is_logged_when_ranking_is_on(warnings_of):
    (warning,) = warnings_of(enabled=True)
    assert "truncated answers rose from 0% to 50%" in warning.getMessage()


def test_it_is_not_logged_when_nothing_is_ranked(warnings_of):
    assert not warnings_of(enabled=False)
