"""Whole training steps through RLlib, with the real engine, learner and environment."""

from collections import Counter

import pytest

from algorithms.train.checkpoints import load_checkpoint, save_checkpoint

from .runs_of import distance, largest_difference, train, weights


def eager_reflection(config):
    """Reflection from the second visit of a query on, whatever its history."""
    return config.reflection(min_attempts=1, threshold=1.1, max_share=0.5)


def test_same_seed_same_numbers(r3_config, build):
    first, second = build(eager_reflection(r3_config.copy())), build(eager_reflection(r3_config.copy()))
    assert train(first, 3) == train(second, 3)
    assert largest_difference(weights(first), weights(second)) == 0.0


def test_no_folder_is_made_where_rllib_keeps_results(r3_config, build, tmp_path, monkeypatch):
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path / "results"))
    build(r3_config)
    assert not (tmp_path / "results").exists()


def test_another_seed_other_rollouts(r3_config, build):
    first, second = build(r3_config.copy()), build(r3_config.copy().debugging(seed=4))
    assert train(first, 1) != train(second, 1)


def test_every_mechanism_acts(r3_config, build, small_pool):
    algorithm = build(eager_reflection(r3_config).environment(data=small_pool))
    records = train(algorithm, 6)
    for tag in ("replay/added", "reflection/prompts", "ranking/ranked"):
        assert sum(record[tag] for record in records) > 0, tag


def test_the_engine_samples_with_the_trainers_policy(r3_config, build):
    records = train(build(r3_config), 3)
    assert max(record["policy/logp_mismatch_max"] for record in records) < 1e-4


def test_ray_actors_sample_the_same_responses_as_this_process_and_two_learners_take_the_step_of_one(r3_config, build):
    local = build(eager_reflection(r3_config.copy()))
    remote = build(eager_reflection(r3_config.copy()).env_runners(num_env_runners=2).learners(num_learners=2))
    before = weights(local)
    train(local, 1), train(remote, 1)
    # Adam's first step is as long for a gradient of 1e-9, whose sign is rounding's, as for any other.
    step, apart = (distance(weights(local), other) for other in (before, weights(remote)))
    assert step > 0 and apart < 0.02 * step
    for here, there in zip(local.batch.groups, remote.batch.groups, strict=True):
        assert here.prompt.uid == there.prompt.uid
        for a, b in zip(here.samples, there.samples, strict=True):
            assert a.rollout.tokens.tolist() == b.rollout.tokens.tolist()
    for record in train(remote, 2):
        assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] >= 6
        assert record["policy/logp_mismatch_max"] < 1e-4
        assert record["groups/count"] >= 6
    assert {s.rollout.weights_version for g in remote.batch.groups for s in g.samples if not s.replayed} != {0}


def test_a_resumed_run_trains_as_the_uninterrupted_one(r3_config, build, tmp_path, small_pool):
    config = eager_reflection(r3_config).environment(data=small_pool)
    whole = build(config.copy())
    train(whole, 3)
    path = save_checkpoint(whole, tmp_path)
    expected = train(whole, 3)
    resumed = build(config.copy())
    load_checkpoint(resumed, path)
    assert train(resumed, 3) == expected
    assert sum(record["replay/added"] + record["reflection/prompts"] for record in expected) > 0
    assert largest_difference(weights(whole), weights(resumed)) == 0.0


@pytest.mark.slow
def test_with_runners_a_resumed_run_makes_the_requests_of_the_uninterrupted_one(r3_config, build, tmp_path, small_pool):
    config = eager_reflection(r3_config).environment(data=small_pool).env_runners(num_env_runners=1)

    def requests_of_a_step(algorithm):
        rollout, made = algorithm.rollout_workers.rollout, []
        algorithm.rollout_workers.rollout = lambda requests, **rest: made.extend(requests) or rollout(requests, **rest)
        train(algorithm, 1)
        return [(r.uid, r.group, r.seed, r.prompt.attempt and r.prompt.attempt.text) for r in made]

    whole = build(config.copy())
    train(whole, 2)
    path = save_checkpoint(whole, tmp_path)
    expected = requests_of_a_step(whole)
    resumed = build(config.copy())
    load_checkpoint(resumed, path)
    assert requests_of_a_step(resumed) == expected
    assert any(attempt for *_, attempt in expected)


def test_a_checkpoint_in_the_middle_of_a_step_is_of_its_beginning(r3_config, build, small_pool):
    algorithm = build(eager_reflection(r3_config).environment(data=small_pool).reflection(adaptive=True))
    train(algorithm, 2)
    before, looked_after = algorithm.get_training_state()[1], []
    run_stage = algorithm.run_stage

    def run_and_look(stage, *arguments):
        result = run_stage(stage, *arguments)
        if algorithm.can_be_saved:
            looked_after.append(stage.__name__)
            assert algorithm.get_training_state()[1] == before, stage.__name__
        return result

    algorithm.run_stage = run_and_look
    train(algorithm, 1)
    assert looked_after[0] == "collect_rollouts" and looked_after[-1] == "compute_advantages"
    assert algorithm.get_training_state()[1]["mechanisms"]["reflection"] != before["mechanisms"]["reflection"]


def test_a_resumed_run_warns_that_its_problems_are_others(grpo_config, build, tmp_path, small_pool, caplog):
    first = build(grpo_config.copy())
    train(first, 1)
    path = save_checkpoint(first, tmp_path)
    load_checkpoint(build(grpo_config.copy()), path)
    assert "other problems" not in caplog.text
    load_checkpoint(build(grpo_config.copy().environment(data=small_pool)), path)
    assert "environment.data holds other problems than at the checkpoint" in caplog.text


def test_samples_of_this_step_cannot_be_retrieved_in_this_step(r3_config, build, small_pool):
    algorithm = build(r3_config.environment(data=small_pool))
    for step in range(4):
        stored = {entry.tokens.tobytes() for entry in _entries(algorithm)}
        train(algorithm, 1)
        replayed = [s.rollout for group in algorithm.batch.groups for s in group.samples if s.replayed]
        assert all(rollout.tokens.tobytes() in stored for rollout in replayed)
        assert step or not replayed


def test_replayed_samples_are_never_written_back(r3_config, build, small_pool):
    config = eager_reflection(r3_config).environment(data=small_pool).history(capacity=None, dedupe=False)
    algorithm = build(config)
    expected, replayed, distilled = Counter(), 0, 0
    for _ in range(6):
        train(algorithm, 1)
        answers, bare = _fresh_answers(algorithm.batch.groups), _distilled_answers(algorithm.batch.groups)
        expected.update(answers + bare)
        replayed += sum(s.replayed for group in algorithm.batch.groups for s in group.samples)
        distilled += len(bare)
    assert replayed and distilled
    assert Counter((entry.uid, *entry.tokens.tolist()) for entry in _entries(algorithm)) == expected


def test_an_unchanged_policy_gives_replayed_tokens_a_ratio_of_one(r3_config, build, small_pool):
    config = eager_reflection(r3_config.copy()).environment(data=small_pool).training(lr=0.0, minibatches=1)
    algorithm = build(config.replay(contexts="any"))
    contexts = set()
    for _ in range(6):
        train(algorithm, 1)
        replayed = [s for group in algorithm.batch.groups for s in group.samples if s.replayed]
        stored = [sample.old_logprobs.copy() for sample in replayed]
        algorithm.score_samples(replayed)
        for sample, logprobs in zip(replayed, stored, strict=True):
            contexts.add(sample.rollout.context)
            assert abs(sample.old_logprobs - logprobs).max() < 1e-5
    assert contexts == {"plain", "reflection", "distilled"}


def test_held_out_problems_are_not_training_problems(grpo_config, build):
    algorithm = build(grpo_config)
    training, held_out = algorithm.environments["train"].unwrapped, algorithm.environments["evaluation"].unwrapped
    problems = [{env.query(uid).problem for uid in env.uids} for env in (training, held_out)]
    assert problems[0] and problems[1] and not problems[0] & problems[1]


def test_evaluation_repeats_itself_and_reports_reflection(grpo_config, build):
    algorithm = build(grpo_config.evaluation(reflection=True))
    first, second = algorithm.evaluate(), algorithm.evaluate()
    assert first == second
    assert first["pass@1"] <= first["pass@1_after_reflection"] <= 1
    assert first["pass@1"] <= first["pass@2"]


@pytest.mark.slow
def test_rllibs_evaluation_interval_puts_the_result_in_its_own_step(grpo_config, build):
    algorithm = build(grpo_config.evaluation(evaluation_interval=2))
    results = [algorithm.train() for _ in range(3)]
    assert ["evaluation" in result for result in results] == [False, True, False]


def _fresh_answers(groups):
    """Query and tokens of every rollout of the step."""
    return [(g.prompt.uid, *s.rollout.tokens.tolist()) for g in groups for s in g.samples if not s.replayed]


def _distilled_answers(groups):
    """Query and tokens of the step's correct reflected answers, put under the query's bare prompt."""
    plain = {g.prompt.uid: g.samples[0].rollout for g in groups if g.prompt.attempt is None}
    bare = {uid: rollout.tokens[: rollout.prompt_length].tolist() for uid, rollout in plain.items()}
    correct = [s.rollout for g in groups if g.prompt.attempt for s in g.samples if s.rollout.correct and not s.replayed]
    return [(r.uid, *bare[r.uid], *r.tokens[r.prompt_length :].tolist()) for r in correct if r.uid in bare]


def _entries(algorithm):
    """All that the history holds."""
    uids = algorithm.uids("train")
    return [
        entry for uid in uids for correct in (True, False) for entry in algorithm.history.entries(uid, correct=correct)
    ]
