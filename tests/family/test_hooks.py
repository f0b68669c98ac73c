"""What a mechanism's hooks do to rollouts, advantages and the update; nothing of RLlib is built."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from algorithms.config.sections import TrainingSettings
from algorithms.grpo import algorithm as algorithm_module
from algorithms.grpo.advantages import group_advantages
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.grpo.rollout_source import MOST_FOLLOW_UPS, RolloutSource
from algorithms.grpo.samples import deal_auxiliary, minibatches, training_rows, training_samples
from algorithms.grpo.types import Group, Prompt, StepBatch
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.update import UpdateStatistics, accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.losses.term import DIRECT, term
from algorithms.rollout.types import Sampling
from tests.hand_made import answer

from .conftest import RESPONSE_LIMIT, Stages, as_groups, hand_made, token_logprobs
from .test_formulas import gradients_of, relative_error

UIDS = [f"q{number}" for number in range(12)]


class Workers:
    """Answer every request, correct in the first half of a group; keep the requests, round by round."""

    version = 0

    def __init__(self):
        self.rounds = []

    def rollout(self, requests):
        self.rounds.append(list(requests))
        return [self._rollout(request) for request in requests]

    def metrics(self, requests, rollouts):
        assert [rollout.request_id for rollout in rollouts] == [request.id for request in requests]
        return {"rollout/prompts_completed": float(len(rollouts))}

    def _rollout(self, request):
        return answer(request, prompt=[1], response=[2], correct=request.seed % 2 == 0, reward=0.0)


class Base(Mechanism):
    def __init__(self):
        super().__init__(None, None)


def source(*mechanisms, **training):
    workers = Workers()
    sampler = EpochSampler(None, SimpleNamespace(uids=UIDS, seed=0))
    settings = TrainingSettings(queries_per_step=2, group_size=4, **training)
    return RolloutSource(workers, sampler, mechanisms, settings, Sampling(), 0), workers


class Hints(Base):
    """Ask for two more of each query, twice; sizes and contexts of its own."""

    def follow_up(self, groups, round):
        self.seen = [*getattr(self, "seen", []), (round, len(groups))]
        if round > 2:
            return []
        return [Prompt(uid, "hint", hint="think", size=round) for uid in dict.fromkeys(g.prompt.uid for g in groups)]


def test_follow_ups_are_rolled_out_round_by_round_with_their_own_sizes():
    hints = Hints()
    made, workers = source(hints)
    batch = made.next_batch(0)
    assert hints.seen == [(1, 2), (2, 4), (3, 6)]
    assert [len(requests) for requests in workers.rounds] == [2 * 4, 2 * 1, 2 * 2]
    assert [(group.prompt.context, len(group.samples)) for group in batch.groups] == [
        *[("plain", 4)] * 2,
        *[("hint", 1)] * 2,
        *[("hint", 2)] * 2,
    ]
    requests = [request for each in workers.rounds for request in each]
    assert [request.id for request in requests] == list(range(14))
    assert sorted({request.group for request in requests}) == list(range(6))
    assert len({request.seed for request in requests}) == 14
    assert all(request.prompt.hint == "think" for request in requests[8:])
    assert batch.record["rollout/prompts_completed"] == 14


def test_without_follow_ups_the_steps_own_requests_are_the_same():
    (plain, workers), (hinted, others) = source(), source(Hints())
    plain.next_batch(3)
    hinted.next_batch(3)
    assert workers.rounds == others.rounds[:1]


def test_follow_ups_end():
    class Endless(Base):
        def follow_up(self, groups, round):
            return [Prompt("q0", size=1)]

    made, workers = source(Endless())
    made.next_batch(0)
    assert len(workers.rounds) == 1 + MOST_FOLLOW_UPS


def test_a_prompts_size_is_its_groups_whoever_asks():
    class Pairs(Base):
        def prompts(self, queries, step):
            return [Prompt(uid, "pair", size=2) for uid in queries]

    made, workers = source(Pairs())
    batch = made.next_batch(0)
    assert [len(group.samples) for group in batch.groups] == [4, 4, 2, 2]
    assert [group.prompt.uid for group in batch.groups[:2]] == [group.prompt.uid for group in batch.groups[2:]]


# -- Advantages. --------------------------------------------------------------------------------------------------


def staged(*mechanisms):
    stages = Stages(GRPOConfig())
    stages.active = list(mechanisms)
    return stages


def rewarded(lm):
    """Two groups of four whose rewards differ between the groups."""
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0))
    for index, group in enumerate(groups):
        for place, sample in enumerate(group.samples):
            sample.reward = float(place < 1 + 2 * index)
    return groups


def values(groups):
    return [sample.advantages for group in groups for sample in group.samples]


def test_groups_that_name_one_baseline_are_normalized_together(lm):
    groups = rewarded(lm)
    alone = [Group(group.prompt, group.samples) for group in groups]
    staged().compute_advantages(StepBatch(0, groups=alone))
    each = [group_advantages(np.array([sample.reward for sample in group.samples])) for group in groups]
    assert values(groups) == pytest.approx(np.concatenate(each))
    shared = [Group(Prompt(group.prompt.uid, baseline="both"), group.samples) for group in groups]
    third = Group(Prompt("2"), rewarded(lm)[0].samples)
    staged().compute_advantages(StepBatch(0, groups=[shared[0], third, shared[1]]))
    together = group_advantages(np.array([sample.reward for group in groups for sample in group.samples]))
    assert values(shared) == pytest.approx(together)
    assert values([third]) == pytest.approx(each[0])
    assert [len(group.samples) for group in shared] == [4, 4]
    assert not np.allclose(np.concatenate(each), together)


class Late(Base):
    """Credit later tokens more."""

    def advantages(self, group, advantages):
        return [
            np.linspace(0, 2, sample.rollout.response_length, dtype=np.float32) * advantage
            for sample, advantage in zip(group.samples, advantages, strict=True)
        ]


def test_advantages_of_tokens_reach_the_loss(lm):
    groups = rewarded(lm)
    batch = StepBatch(0, groups=groups)
    staged().compute_advantages(batch)
    whole = values(groups)
    staged(Late()).compute_advantages(batch)
    for sample, advantage in zip((s for g in groups for s in g.samples), whole, strict=True):
        np.testing.assert_allclose(
            sample.advantages, np.linspace(0, 2, sample.rollout.response_length) * advantage, rtol=1e-6
        )
    found, samples = trained(lm, groups), [sample for group in groups for sample in group.samples]
    lm.zero_grad(set_to_none=True)
    count = sum(sample.rollout.response_length for sample in samples)
    for sample in samples:
        (logprobs(lm, sample) * torch.tensor(sample.advantages)).sum().neg().div(count).backward()
    assert relative_error(found, gradients_of(lm)) < 1e-3


def logprobs(lm, sample):
    return token_logprobs(lm, SimpleNamespace(tokens=sample.rollout.tokens))


def trained(lm, groups, auxiliary=(), minibatches=1):
    """The gradient of an update, ratios 1."""
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    settings = TrainingSettings(loss_aggregation="token", importance_cap=0.0)
    rows = training_samples(samples, settings, RESPONSE_LIMIT)
    for number in range(minibatches):
        rows += deal_auxiliary(list(auxiliary), number, minibatches)
    lm.zero_grad(set_to_none=True)
    accumulate_gradients(lm, rows, ForwardSettings(token_budget=64), LossSettings.of(settings))
    return gradients_of(lm)


def test_auxiliary_samples_add_the_gradient_of_their_weighted_log_probs_and_leave_the_others_weights(lm):
    groups = rewarded(lm)
    staged().compute_advantages(StepBatch(0, groups=groups))
    extra = as_groups(hand_made(lm, own=1.0, shared=0.0, engine=1.0))[0].samples  # of another policy
    for place, sample in enumerate(extra):
        sample.advantages = np.float32(place - 1.0) if place < 2 else np.full(sample.rollout.response_length, 0.5)
    without, with_them = trained(lm, groups), trained(lm, groups, extra)
    count = sum(sample.rollout.response_length for sample in extra)
    lm.zero_grad(set_to_none=True)
    for sample in extra:
        (logprobs(lm, sample) * torch.as_tensor(sample.advantages, dtype=torch.float32)).sum().neg().div(
            count
        ).backward()
    expected = gradients_of(lm)
    assert relative_error({name: with_them[name] - without[name] for name in without}, expected) < 1e-3
    assert relative_error(without, expected) > 0.1


@pytest.mark.parametrize("aggregation", ["response", "token", "constant"])
def test_a_response_weighs_in_its_mini_batch_what_the_aggregation_says(lm, aggregation):
    """Over a training step, mean over groups of the mean over responses, however they are shuffled."""
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0))
    dealt = minibatches(groups, 3, np.random.default_rng(0))
    rows = training_rows(dealt, TrainingSettings(loss_aggregation=aggregation), RESPONSE_LIMIT)
    assert [len(part) for part in rows] == [3, 3, 2]
    for part in rows:
        lengths = [row.response_length for row in part]
        expected = {
            "response": [3 / (2 * 4 * length) for length in lengths],
            "token": [1 / sum(lengths)] * len(part),
            "constant": [1 / (len(part) * RESPONSE_LIMIT)] * len(part),
        }
        np.testing.assert_allclose([row.weight for row in part], expected[aggregation])
    assert training_rows([], TrainingSettings(loss_aggregation=aggregation), RESPONSE_LIMIT) == []


def test_over_several_optimizer_steps_each_auxiliary_sample_is_dealt_once():
    samples = [SimpleNamespace(uid=number) for number in range(5)]
    for sample in samples:
        mask = np.arange(4) >= 2
        sample.rollout = SimpleNamespace(
            tokens=np.full(4, sample.uid), loss_mask=mask, response_length=2, sampling_logprobs=np.ones(2)
        )
        sample.advantages, sample.old_logprobs, sample.replayed = 1.0, np.ones(2), False
        sample.terms, sample.inputs = {term("anchor"): np.ones(2), term("shaped"): 1.0}, {"targets": 1.0}
    dealt = [deal_auxiliary(samples, number, 3) for number in range(3)]
    assert sorted(int(row.tokens[0]) for rows in dealt for row in rows) == list(range(5))
    rows = [row for each in dealt for row in each]
    assert {row.weight for row in rows} == {3 / 10}
    assert all(row.old_logprobs is None and row.sampling_logprobs is None for row in rows)
    assert all(row.terms == {DIRECT: 1.0} and not row.inputs for row in rows)


class Auxiliary(Base):
    """Rows of its own."""

    def __init__(self, samples):
        super().__init__()
        self.samples = samples

    def auxiliary(self, batch):
        return self.samples


@pytest.mark.parametrize("minibatches", [1, 2])
def test_each_mechanisms_auxiliary_samples_are_a_mean_of_their_own(lm, monkeypatch, minibatches):
    """The rows of one weigh the same whether another mechanism has rows or not, and none of them is lost."""
    samples = as_groups(hand_made(lm, own=1.0, shared=0.0, engine=1.0))[0].samples
    for sample in samples:
        sample.advantages = 1.0
    parts = samples[:1], samples[1:]

    def rows_of(*mechanisms, groups=()):
        stages = staged(*mechanisms)
        stages.config = GRPOConfig().training(minibatches=minibatches)
        stages.history, stages.keeps_entropies, stages.learner_group, seen = None, False, None, []
        stages.score_samples = lambda samples, **_: None

        def update(group, rows, lr, *, entropies):
            seen.extend(rows)
            return UpdateStatistics()

        monkeypatch.setattr(algorithm_module, "update_learners", update)
        monkeypatch.setattr(algorithm_module, "learner_facts", lambda group: None)
        monkeypatch.setattr(algorithm_module, "learner_rates", lambda *_: {})
        monkeypatch.setattr(algorithm_module, "update_metrics", lambda *_: {"policy/logp_mismatch_mean": 0.0})
        monkeypatch.setattr(algorithm_module, "correction_metrics", lambda *_: {})
        stages.skipped_steps = stages.mismatch_watch = SimpleNamespace(observe=lambda *_: None)
        stages.update_policy(StepBatch(0, groups=list(groups)))
        return {row.tokens.tobytes(): row.weight for row in seen if not row.on_policy}

    alone = [rows_of(Auxiliary(part), groups=rewarded(lm)) for part in parts]
    together = rows_of(*map(Auxiliary, parts), groups=rewarded(lm))
    assert together == {**alone[0], **alone[1]} and len(together) == 4
    for part, weights in zip(parts, alone, strict=True):
        tokens = sum(sample.rollout.response_length for sample in part)
        assert list(weights.values()) == pytest.approx([minibatches / tokens] * len(part))
    rest = rows_of(Auxiliary(samples))
    total = sum(sample.rollout.response_length for sample in samples)
    assert list(rest.values()) == pytest.approx([1 / total] * 4), "a step without groups has them too"


@pytest.mark.parametrize("other", [{"ratio_level": "sequence"}, {"objective": "gmpo"}, {"objective": "sapo"}], ids=str)
def test_auxiliary_samples_have_the_gradient_of_their_own_objective_in_every_loss(lm, other):
    """Tokens of one response with unlike advantages, which a ratio or a mean of the response would even out."""
    (sample, *_) = as_groups(hand_made(lm, own=1.0, shared=0.0, engine=1.0))[0].samples
    sample.advantages = np.linspace(-1, 2, sample.rollout.response_length).astype(np.float32)
    lm.zero_grad(set_to_none=True)
    loss = LossSettings.of(TrainingSettings(importance_cap=0.0, **other))
    accumulate_gradients(lm, deal_auxiliary([sample], 0, 1), ForwardSettings(token_budget=64), loss)
    found = gradients_of(lm)
    (logprobs(lm, sample) * torch.tensor(sample.advantages)).mean().neg().backward()
    assert relative_error(found, gradients_of(lm)) < 1e-3


def test_before_rewards_sees_what_the_environment_pays_and_comes_before_each_groups_rewards(lm):
    class Watch(Base):
        def __init__(self):
            super().__init__()
            self.calls = []

        def before_rewards(self, batch):
            self.calls.append([[sample.reward for sample in group.samples] for group in batch.groups])

        def rewards(self, group):
            self.calls.append(group.prompt.uid)

    stages, groups = Stages(GRPOConfig()), as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    stages.active = [watch := Watch()]
    stages.shape_rewards(StepBatch(0, groups=groups))
    assert watch.calls == [[[0.0, 1.0, 1.0, 0.0]] * 2, "0", "1"]
