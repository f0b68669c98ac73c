"""What `shape_prompts` may do to a step's plain prompts: sizes and greedy probes."""

from dataclasses import replace

import pytest

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.query_sampler import EpochSampler
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.rollout.types import Sampling

from .simulated import Workers, services


class Sized(Mechanism):
    sizes = (7, 2, 3)

    def shape_prompts(self, prompts, step):
        return [replace(prompt, size=size) for prompt, size in zip(prompts, self.sizes, strict=True)]


class Greedy(Mechanism):
    def shape_prompts(self, prompts, step):
        return [replace(prompt, greedy=number == 1) for number, prompt in enumerate(prompts)]


def source(*mechanisms, **training):
    workers, given = Workers(), services()
    settings = TrainingSettings(queries_per_step=3, group_size=4, **training)
    mechanisms = [kind(None, given) for kind in mechanisms]
    return RolloutSource(workers, EpochSampler(None, given), mechanisms, settings, Sampling(), 0), workers


def seeds(requests, group):
    return [request.seed for request in requests if request.group == group]


def test_a_prompts_size_is_its_groups_and_moves_no_other_seed():
    (plain, workers), (sized, others) = source(), source(Sized)
    batch = sized.next_batch(0)
    plain.next_batch(0)
    assert [len(group.samples) for group in batch.groups] == [7, 2, 3]
    (usual,), (mine,) = workers.rounds, others.rounds
    assert [seeds(mine, group)[: len(seeds(usual, group))] for group in range(3)] == [
        seeds(usual, group)[:size] for group, size in enumerate((4, 2, 3))
    ]
    assert len({request.seed for request in mine}) == 12


def test_a_resumed_step_has_the_sizes_that_it_had_begun_with(monkeypatch):
    begun, _ = source(Sized, max_off_policy_steps=1)
    begun.next_batch(0)
    assert [each["sizes"] for each in begun.state["under_way"]] == [[7, 2, 3]]
    monkeypatch.setattr(Sized, "sizes", (1, 1, 1))
    resumed, _ = source(Sized, max_off_policy_steps=1)
    resumed.restart(begun.state)
    assert resumed.state == begun.state
    assert [len(resumed.next_batch(step).groups[0].samples) for step in (1, 2)] == [7, 1]


def test_queries_of_rollouts_that_could_not_begin_are_drawn_again(monkeypatch):
    made, workers = source(max_off_policy_steps=1)
    starts, start = [], workers.start

    def failing(requests):
        starts.append(requests)
        if len(starts) == 2:
            raise RuntimeError("no runner is left")
        return start(requests)

    monkeypatch.setattr(workers, "start", failing)
    with pytest.raises(RuntimeError):
        made.next_batch(0)
    assert made.state["query_position"] == 3, "those of the step that has begun"
    made.repeat(0, {})
    made.next_batch(0)
    assert starts[1] == starts[2] and made.state["query_position"] == 6


def test_a_greedy_prompt_is_decoded_at_temperature_0_and_others_are_sampled():
    made, workers = source(Greedy)
    made.next_batch(0)
    temperatures = {request.group: request.sampling.temperature for request in workers.rounds[0]}
    assert temperatures == {0: 1.0, 1: 0.0, 2: 1.0}
