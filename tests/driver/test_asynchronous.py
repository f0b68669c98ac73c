"""Rollouts that go on while the learners work: what lags, by how much, what is lost and what is resumed."""

import statistics

import pytest

from algorithms.config.errors import ConfigError

from .conftest import two_runners

pytestmark = pytest.mark.slow

QUERIES, MOST = 6, 3


@pytest.fixture(scope="module")
def ahead(ray_session):
    algorithm = two_runners().training(max_off_policy_steps=MOST, minibatches=2).build_algo()
    yield algorithm
    algorithm.stop()


def rollouts_of(algorithm):
    return [sample.rollout for group in algorithm.batch.groups for sample in group.samples]


def test_no_token_is_of_an_older_policy_than_allowed(ahead):
    pushed = [ahead.rollout_workers.version]
    for step in range(5):
        ahead.train()
        record = ahead.batch.record
        spans = [span for rollout in rollouts_of(ahead) for span in rollout.version_spans]
        lags = [step - pushed.index(version) for version, _ in spans]
        assert 0 <= min(lags) and max(lags) == record["rollout/policy_lag"] <= min(step, MOST)
        tokens = sum(count for _, count in spans)
        mean = sum(lag * count for lag, (_, count) in zip(lags, spans, strict=True)) / tokens
        assert record["rollout/policy_lag_mean"] == pytest.approx(mean)
        assert record["rollout/prompts_completed"] == record["rollout/prompts_expected"] == QUERIES
        assert record["rollout/stale"] == 0
        pushed.append(ahead.rollout_workers.version)
    assert record["rollout/policy_lag"] > 0
    assert record["policy/logp_mismatch_max"] > 1e-4  # the engines' policy is another one than the learners'


def test_evaluation_between_steps_is_of_the_newest_policy_and_leaves_the_rest(ahead):
    first = ahead.evaluate()
    assert ahead.evaluate() == first
    assert set(ahead.evaluation.uids)
    ahead.train()
    assert ahead.batch.record["rollout/prompts_completed"] == QUERIES


def test_an_evaluation_takes_nothing_from_the_counts_of_the_next_step(ahead):
    pool = ahead.rollout_workers
    pool._dispatches._sums["stale"] += 7.0
    ahead.evaluate()
    ahead.train()
    assert ahead.batch.record["rollout/stale"] == 7.0


def trained_queries(algorithm, steps):
    trained = []
    for _ in range(steps):
        algorithm.train()
        trained.append([group.prompt.uid for group in algorithm.batch.rolled_out])
    return trained


def test_a_resume_asks_again_what_was_under_way_and_nothing_else(config):
    config = config.copy(copy_frozen=False).env_runners(num_env_runners=1)
    config.training(max_off_policy_steps=2, max_resample_rounds=2)
    whole = config.build_algo()
    before = trained_queries(whole, 2)
    arrays, state = whole.get_training_state()
    assert [each["step"] for each in state["under_way"]] == [2, 3]
    whole.stop()
    resumed = config.build_algo()
    resumed.set_training_state(arrays, state)
    assert resumed.get_training_state()[1]["under_way"] == state["under_way"]
    after = trained_queries(resumed, 2)
    for queries, asked in zip(after, state["under_way"], strict=True):
        assert set(queries) >= set(asked["queries"])
    drawn = [uid for queries in (*before, *after) for uid in queries]
    drawn += [uid for each in resumed.get_training_state()[1]["under_way"] for uid in each["queries"]]
    assert len(drawn) == len(set(drawn)) == resumed.get_training_state()[1]["query_position"]
    resumed.stop()


def test_a_policy_that_does_not_change_is_trained_on_the_same_rollouts_either_way(config):
    """Same queries, same prompts, same seeds, whether they were rolled out ahead or not."""
    drawn = []
    for lag in (0, 2):
        lagging = (
            config.copy(copy_frozen=False)
            .env_runners(num_env_runners=min(1, lag))
            .training(max_off_policy_steps=lag, lr=0.0)
        )
        algorithm = lagging.build_algo()
        for _ in range(3):
            algorithm.train()
        drawn.append([(g.prompt.uid, s.rollout.tokens.tolist()) for g in algorithm.batch.groups for s in g.samples])
        algorithm.stop()
    assert drawn[0] == drawn[1]


def test_rewards_grow_as_without_a_lag(config):
    """At as many samples, over two seeds; the noise is that of the seeds and of the responses."""
    queries, steps, last, seeds = 16, 10, 5, (1, 2)
    reached = {}
    for lag in (0, 2):
        for seed in seeds:
            algorithm = (
                config.copy(copy_frozen=False)
                .env_runners(num_env_runners=min(1, lag))
                .training(group_size=8, queries_per_step=queries, max_off_policy_steps=lag)
                .debugging(seed=seed)
                .build_algo()
            )
            rewards = []
            for _ in range(steps):
                algorithm.train()
                rewards.append(statistics.fmean(sample.rollout.correct for sample in algorithm.batch.fresh))
            algorithm.stop()
            reached.setdefault(lag, []).append(statistics.fmean(rewards[-last:]))
    share = statistics.fmean([*reached[0], *reached[2]])
    responses = 2 * share * (1 - share) / (len(seeds) * last * queries)  # those to one query are alike: count queries
    noise = responses + sum(statistics.variance(each) for each in reached.values()) / len(seeds)
    assert abs(statistics.fmean(reached[2]) - statistics.fmean(reached[0])) < 2.5 * noise**0.5


@pytest.mark.parametrize(
    ("section", "setting", "value"), [("env_runners", "num_env_runners", 0), ("training", "importance_cap", 0.0)]
)
def test_what_does_not_go_with_a_lag_is_an_error_that_names_it(section, setting, value):
    with pytest.raises(ConfigError, match="training.max_off_policy_steps: 4"):
        config = two_runners().training(max_off_policy_steps=4)
        getattr(config, section)(**{setting: value}).check_settings()
