import logging
from dataclasses import replace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.ranking import Ranking

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
    (warning,) = warned(best_rank, baseline=baseline, max_reward=0.1, order="entropy")
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


@pytest.mark.parametrize(("second", "ordered"), [([0.0, 0.8], 1.0), ([0.5, 2.0], 0.0), ([0.0, 1.0], 0.0)])
def test_it_counts_the_groups_in_which_entropies_order_responses(stub, second, ordered):
    """One dominates where its peak is higher and its mean is lower."""
    algorithm = stub(ranking={"order": "entropy"})
    members = [sample([10, 11], truncated=True), sample([12, 13], truncated=True), sample([14])]
    for member, entropies in zip(members, ([0.5, 0.5], second, [0.1]), strict=True):
        member.entropies = np.array(entropies)
    algorithm.shape_rewards(batch_of(plain_group(*members)))
    assert algorithm.metric("ranking/groups") == 1 and algorithm.metric("ranking/ranked") == 2
    assert algorithm.metric("ranking/ordered") == ordered


@pytest.mark.parametrize(("truncated", "floor"), [(2, 0.5), (1, 0.0), (0, 0.0)])
def test_the_deviation_has_a_floor_where_responses_were_ranked(stub, truncated, floor):
    """Partial credit and penalties for length alone are compared as in GRPO."""
    group = plain_group(*(sample([10 + place], truncated=place < truncated) for place in range(3)))
    stub().the(Ranking).normalize(group)
    assert group.std_floor == floor


def test_ranks_by_chance_are_the_same_rewards_in_another_order_and_repeat(stub):
    def rewards(order, step=5):
        algorithm = stub(ranking={"order": order})
        algorithm.services.step = step
        members = [sample([10 + place], truncated=True) for place in range(6)]
        for place, member in enumerate(members):
            member.entropies = np.array([0.5 - place / 20, 0.5 + place / 50])
        algorithm.shape_rewards(batch_of(plain_group(*members)))
        return [member.shaped_reward for member in members]

    assert rewards("random") == rewards("random") != rewards("random", step=6)
    assert sorted(rewards("random")) == pytest.approx(np.linspace(-0.1, 0, 6))
    assert len(set(rewards("entropy"))) > 1


def test_with_flat_ranks_all_tie_and_no_entropy_is_asked_for(stub):
    """A flat penalty on truncation: half of the largest reward, below a finished incorrect response."""
    algorithm = stub(ranking={"max_reward": 0.2, "order": "flat"})
    group = plain_group(sample([10, 11], truncated=True), sample([12, 13], truncated=True), sample([14]))
    (ranking,) = (mechanism for mechanism in algorithm.active if isinstance(mechanism, Ranking))
    assert ranking.needs(group) == [] and ranking.is_informative(group)
    algorithm.shape_rewards(batch_of(group))
    assert [one.training_reward for one in group.samples] == pytest.approx([-0.1, -0.1, 0.0])
    assert algorithm.metric("ranking/groups") == 1 and algorithm.metric("ranking/ordered") == 0


def test_truncation_is_not_paid_where_an_incorrect_answer_costs(stub):
    members = [sample([10, 11], truncated=True), sample([12, 13], truncated=True), sample([14])]
    for member in members:
        member.rollout = replace(member.rollout, reward=-1.0)
    algorithm = stub(ranking={"max_reward": 0.2, "order": "flat"})
    algorithm.shape_rewards(batch_of(plain_group(*members)))
    assert [one.training_reward for one in members] == pytest.approx([-1.1, -1.1, -1.0])


def test_a_flat_rank_is_what_entropies_give_that_order_nothing(stub):
    def rewards(**ranking):
        members = [sample([10, 11], truncated=True), sample([12, 13], truncated=True), sample([14])]
        for member, entropies in zip(members, ([0.5, 0.1], [0.2, 0.4], [0.3]), strict=True):
            member.entropies = np.array(entropies)
        group = plain_group(*members)
        stub(ranking=ranking).shape_rewards(batch_of(group))
        return [one.training_reward for one in group.samples]

    assert rewards(order="flat") == rewards(top_fraction=1.0)


@pytest.mark.parametrize("count", [0, 1])
def test_a_response_that_is_ranked_alone_gets_nothing_in_any_order(stub, count):
    for order in ("flat", "entropy", "random"):
        alone = [sample([10, 11], truncated=True)] * count
        for member in alone:
            member.entropies = np.array([0.1, 0.2])
        group = plain_group(*alone, sample([14]))
        stub(ranking={"order": order}).shape_rewards(batch_of(group))
        assert [one.training_reward for one in group.samples] == [0.0] * (count + 1)


@pytest.mark.parametrize(
    ("ranking", "line"),
    [
        (
            {"baseline": "centered", "order": "flat"},
            "ranking.baseline: 'centered' pays 0 for each of ranks that all tie",
        ),
        ({"top_fraction": 0.5, "order": "flat"}, "ranking.top_fraction: 0.5 does nothing where no entropies rank"),
        ({"top_fraction": 0.5, "order": "random"}, "ranking.top_fraction: 0.5 does nothing where no entropies rank"),
    ],
)
def test_settings_that_do_nothing_without_entropies_are_refused(ranking, line):
    with pytest.raises(ConfigError, match=line):
        R3GRPOConfig().apply({"ranking": ranking}).check_settings()
    R3GRPOConfig().apply({"ranking": ranking | {"order": "entropy"}}).check_settings()
