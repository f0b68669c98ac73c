import logging

import pytest

from .conftest import batch_of, plain_group, sample


@pytest.fixture
def warned(stub, caplog):
    """The warnings of two steps in which an environment pays so much for a correct answer."""

    def run(paid, **ranking):
        algorithm = stub(ranking=ranking, reward={"length_bonus": 0.0})
        correct = sample([10], True)
        object.__setattr__(correct.rollout, "reward", paid)
        with caplog.at_level(logging.WARNING, logger="algorithms"):
            for _ in range(2):
                algorithm.shape_rewards(batch_of(plain_group(correct, sample([11]))))
        return [record.getMessage() for record in caplog.records]

    return run


@pytest.mark.parametrize(("baseline", "best_rank"), [("paper", 0.1), ("centered", 0.05)])
def test_a_correct_answer_that_earns_no_more_than_the_best_rank_is_told_once(warned, baseline, best_rank):
    (warning,) = warned(best_rank, baseline=baseline, max_reward=0.1)
    assert f"a correct response earned {best_rank:g}" in warning and "ranking.max_reward" in warning


@pytest.mark.parametrize(
    ("paid", "ranking"),
    [
        (0.11, {"baseline": "paper", "max_reward": 0.1}),
        (0.06, {"baseline": "centered", "max_reward": 0.1}),
        (0.05, {"baseline": "finished_wrong", "max_reward": 0.1}),  # its best rank earns 0
        (0.05, {"baseline": "paper", "max_reward": 0.1, "enabled": False}),
    ],
)
def test_what_is_in_order_is_not_told(warned, paid, ranking):
    assert warned(paid, **ranking) == []


def test_nothing_is_worth_less_than_nothing(warned):
    assert len(warned(-0.5, baseline="finished_wrong")) == 1
