"""Runs in which all three mechanisms act: their order, their switches, methods of one's own, and exact resumption."""

import numpy as np
import pytest
import torch

from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.hand_made import small_pool
from tests.own_learners import policy_state

from .conftest import preset

SMALL = (
    "training.queries_per_step=5",
    "training.group_size=4",
    "training.minibatches=1",
    "env_runners.max_response_tokens=16",
)
REFLECT = ("reflection.min_attempts=1", "reflection.threshold=0.6", "reflection.max_share=0.5")
OFF = ("replay.enabled=false", "reflection.enabled=false", "ranking.enabled=false")
OWN = '''
from dataclasses import replace

import numpy as np

from algorithms.grpo.advantages import AdvantageEstimator, mean_advantages
from algorithms.grpo.mechanism import Mechanism, Settings, setting
from algorithms.grpo.query_sampler import QuerySampler


class BonusSettings(Settings):
    """Pay correct answers more with each step."""

    enabled: bool = setting(True, "Whether to pay.")
    amount: float = setting(0.5, "What is paid for each step.", ge=0)


class Bonus(Mechanism):
    section, settings_class, tags = "bonus", BonusSettings, {"bonus/paid": -1.0}

    def __init__(self, settings, services):
        super().__init__(settings, services)
        self.steps = np.zeros(1)

    def rewards(self, group):
        for sample in group.samples:
            if sample.rollout.correct:
                sample.shaped_reward = sample.reward + self.settings.amount * float(self.steps[0])

    def update_history(self, batch):
        self.metrics["bonus/paid"] = self.settings.amount * float(self.steps[0])
        self.steps = self.steps + self.services.rng("bonus", batch.step).random()

    def state(self):
        return {"steps": self.steps}, {}

    def restore(self, arrays, state):
        self.steps = np.array(arrays["steps"])


class Rehearse(Mechanism):
    """Learn correct answers once more, whatever their group."""

    section = "rehearse"

    def auxiliary(self, batch):
        return [replace(sample, advantages=1.0) for sample in batch.fresh if sample.rollout.correct]


class Walk(QuerySampler):
    """Go through the queries in order, one further back after a solved group."""

    section = "walk"
    settings_class = type("WalkSettings", (Settings,), {"__doc__": "Walk."})
    at = 0

    def choose(self, count, step, occasion=0):
        return [self.services.uids[(self.at + offset) % len(self.services.uids)] for offset in range(count)]

    def update_history(self, batch):
        self.at += sum(not group.any_correct for group in batch.rolled_out)

    def state(self):
        return {}, {"at": self.at}

    def restore(self, arrays, state):
        self.at = state["at"]


class Triple(AdvantageEstimator):
    def advantages(self, group):
        return 3.0 * mean_advantages(self.rewards(group))
'''


@pytest.fixture
def pool(tmp_path):
    """Eight problems: a query comes back every other step."""
    return f"environment.data={small_pool(tmp_path, 8)}"


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_in_runs.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return (
        "training.mechanisms=[own_in_runs:Bonus]",
        "training.query_sampler=own_in_runs:Walk",
        "training.advantage=own_in_runs:Triple",
    )


def r3(*overrides, config_class=R3GRPOConfig):
    return preset("grpo", *SMALL, "training.beta=0", *overrides, config_class=config_class)


def steps(algorithm, count):
    """Train; return what each step recorded but wall times."""
    records = []
    for _ in range(count):
        algorithm.train()
        record = algorithm.batch.record
        records.append({k: v for k, v in record.items() if not k.startswith(("time/", "throughput/"))})
    return records


def weights(algorithm):
    return policy_state(algorithm.learner_group)[1]["default_policy"]


def check_same(one, other):
    assert all(torch.equal(tensor, weights(other)[name]) for name, tensor in weights(one).items())


def fired(records, *tags):
    return all(sum(record[tag] for record in records) > 0 for tag in tags)


def test_the_order_of_the_mechanisms_changes_no_number(build, pool):
    class Reversed(R3GRPO):
        mechanisms = R3GRPO.mechanisms[::-1]

    settings = (pool, *REFLECT, "training.max_resample_rounds=1", "replay.std_scale=0.5")
    usual = build(r3(*settings))
    turned_config = r3(*settings)
    turned_config.algo_class = Reversed
    turned = build(turned_config)
    assert [type(each) for each in turned.active[:3]] == [type(each) for each in usual.active[2::-1]]
    records = steps(usual, 6)
    assert fired(records, "replay/added", "reflection/prompts", "ranking/ranked")
    assert steps(turned, 6) == records
    check_same(usual, turned)


def test_with_all_switches_off_it_is_grpo_bit_for_bit_and_says_so_in_every_tag(build, pool):
    off, plain = build(r3(pool, *OFF)), build(r3(pool, config_class=GRPOConfig))
    records, expected = steps(off, 3), steps(plain, 3)
    assert off.history is None and len(off.active) == 1
    idle = {tag: value for kind in R3GRPO.mechanisms for tag, value in kind.tags.items()}
    assert [{tag: value for tag, value in record.items() if tag not in idle} for record in records] == expected
    assert all(record[tag] == value for record in records for tag, value in idle.items())
    check_same(off, plain)


def resumed_exactly(build, config, folder, before=3, after=3):
    """Interrupt a run after some steps; return the records of both, and the two algorithms."""
    whole = build(config())
    first = steps(whole, before)
    path = save_checkpoint(whole, folder)
    expected = steps(whole, after)
    resumed = build(config())
    load_checkpoint(resumed, path)
    assert steps(resumed, after) == expected
    check_same(whole, resumed)
    return [*first, *expected], whole, resumed


def test_methods_of_ones_own_are_resumed_exactly(build, pool, own, tmp_path):
    records, whole, resumed = resumed_exactly(
        build, lambda: r3(pool, *REFLECT, *own, "bonus.amount=0.25"), tmp_path / "checkpoints"
    )
    assert fired(records, "bonus/paid", "replay/added")
    assert len({record["bonus/paid"] for record in records}) == 6
    assert whole.sampler.at == resumed.sampler.at > 0 and whole.sampler.drawn == resumed.sampler.drawn == 30
    groups = [group for group in whole.batch.groups if not group.homogeneous]
    rewards = np.array([sample.training_reward for sample in groups[0].samples])
    advantages = [sample.advantages for sample in groups[0].samples]
    np.testing.assert_allclose(advantages, 3 * (rewards - rewards.mean()))


def test_one_of_ones_own_that_is_off_says_so_and_changes_nothing(build, pool, own):
    off, without = build(r3(pool, own[0], "bonus.enabled=false")), build(r3(pool))
    records, expected = steps(off, 2), steps(without, 2)
    assert [record.pop("bonus/paid") for record in records] == [-1.0, -1.0]
    assert records == expected
    check_same(off, without)


def test_the_posterior_sampler_with_r3_is_resumed_exactly(build, pool, tmp_path):
    settings = ("training.query_sampler=posterior", "posterior.target=0.3", "posterior.score=target")
    records, whole, resumed = resumed_exactly(
        build, lambda: r3(pool, *REFLECT, *settings, "training.max_resample_rounds=1"), tmp_path / "checkpoints"
    )
    assert fired(records, "replay/added", "posterior/mixed")
    for name in ("a", "b"):
        counts = getattr(whole.sampler, name)
        np.testing.assert_array_equal(counts, getattr(resumed.sampler, name))
        assert len(counts) == 8 and counts.max() > 1
    assert whole.sampler.drawn == resumed.sampler.drawn


@pytest.mark.parametrize("minibatches", [1, 2])
def test_auxiliary_samples_are_trained_on_beside_the_steps_own(build, pool, own, minibatches):
    own = "training.mechanisms=[own_in_runs:Rehearse]"
    more, plain = (build(r3(pool, *OFF, *named, f"training.minibatches={minibatches}")) for named in ([own], []))
    (record,), (expected,) = steps(more, 1), steps(plain, 1)
    assert record["policy/trained_tokens"] > expected["policy/trained_tokens"]
    assert record["policy/logp_mismatch_max"] == expected["policy/logp_mismatch_max"] < 1e-4
    assert record["groups/zero_advantage"] == expected["groups/zero_advantage"]
    assert any(not torch.equal(tensor, weights(plain)[name]) for name, tensor in weights(more).items())
