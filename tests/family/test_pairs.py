"""Any two mechanisms in short runs of the embedded model: they compose, or one line says why not."""

import functools
import itertools

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo import algorithm as grpo
from algorithms.grpo.registry import mechanisms
from tests.hand_made import small_pool

from .conftest import preset
from .test_whole_runs import check_same, resumed_exactly, steps

# What lets each act within a few steps of eight problems, and the metric that shows it.
ACTS = {
    "replay": ("replay/added",),
    "reflection": ("reflection/prompts", "reflection.min_attempts=1", "reflection.threshold=0.6"),
    "ranking": ("ranking/ranked",),
    "covariance": ("covariance/tokens", "covariance.share=0.1", "covariance.low=0.0001", "covariance.high=50"),
    "mdpo": ("mdpo/step_size",),
    "entropy_bonus": ("entropy_bonus/coefficient", "entropy_bonus.target=50", "entropy_bonus.step=0.01"),
    "self_filter": ("self_filter/kept",),
    "knapsack": ("knapsack/largest",),
    "gdro": ("gdro/largest",),
    "sdpo": ("sdpo/solutions",),
    "opd": ("opd/gap_size",),
    "ace": ("ace/shift",),
    "gdpo": ("gdpo/std",),
    "prefix_rl": ("prefix_rl/prompts", "prefix_rl.threshold=1", "prefix_rl.flawed=0.4"),
    "cog_drift": ("cog_drift/variants", "cog_drift.formats=[fill_in,open_ended]"),
    "fission": ("fission/prompts",),
    "svs": ("svs/written",),
    "scaf_grpo": ("scaf_grpo/replaced", "scaf_grpo.warmup=0"),
    "laser": ("laser/loss", "laser.warmup=1", "laser.min_std=0.001"),
    "dph_rl": ("dph_rl/rehearsed", "dph_rl.solved=0.25"),
    "bcpg_nsa": ("bcpg_nsa/distance", "bcpg_nsa.tau=0.1"),
    "prerl": ("prerl/responses", "prerl.steps=2"),
    "rover": ("rover/tokens",),
    "arena_rl": ("arena_rl/comparisons",),
    "med_grpo": ("med_grpo/parts",),
    "rep_exp": ("rep_exp/bonus",),
    # It keeps advantages as those before it leave them.
    "rorecomp": ("rorecomp/buffer",),
    "mask_truncated": ("response/masked",),
}
# Those that a setting of section `training` switches on.
SWITCHES = ("mask_truncated",)
BEFORE = AFTER = MINIBATCHES = 2
TOGETHER = 20  # mechanisms of a run at most, which shows a hundred and ninety pairs at once

TOUCHING_EVERY_STAGE = (("replay", "reflection", "ranking"), ("knapsack", "scaf_grpo", "med_grpo", "opd", "dph_rl"))


def others(*names):
    return [other for other in ACTS if other not in names]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Eight problems with hints and easier forms: a query comes back every other step."""
    return small_pool(tmp_path_factory.mktemp("pairs"), 8)


@pytest.fixture(scope="module")
def configured(pool):
    """Makes the configuration of GRPO with some mechanisms that act, and others that are off."""

    def make(*names, off=()):
        settings = [
            f"environment.data={pool}",
            f"training.mechanisms=[{','.join(name for name in (*names, *off) if name not in SWITCHES)}]",
            *(f"training.{name}={str(name in names).lower()}" for name in SWITCHES),
            "training.beta=0",
            "training.queries_per_step=5",
            "training.group_size=4",
            f"training.minibatches={MINIBATCHES}",
            "env_runners.max_response_tokens=24",
            *(setting for name in names for setting in ACTS[name][1:]),
            *(f"{name}.enabled=false" for name in off if name not in SWITCHES),
        ]
        return preset("grpo", *settings)

    return make


@pytest.fixture
def updates(monkeypatch):
    """For each training step, the rows of its optimizer steps."""
    seen, update, update_policy = [], grpo.update_learners, grpo.GRPO.update_policy

    def begin(algorithm, batch):
        seen.append([])
        update_policy(algorithm, batch)

    def keep(learner_group, rows, lr, **more):
        seen[-1].append(rows)
        return update(learner_group, rows, lr, **more)

    monkeypatch.setattr(grpo.GRPO, "update_policy", begin)
    monkeypatch.setattr(grpo, "update_learners", keep)
    return seen


def test_every_mechanism_of_the_library_is_in_the_pairs():
    assert set(ACTS) == {*mechanisms(), *SWITCHES}


@pytest.mark.parametrize("name", ACTS)
def test_it_acts_alone_beside_the_others_switched_off(build, configured, name):
    config = configured(name, off=others(name))
    assert set(config.enabled_mechanisms()) - {name} == set(configured().enabled_mechanisms()) - {name}
    assert any(record[ACTS[name][0]] for record in steps(build(config), BEFORE + AFTER))


@pytest.mark.parametrize("names", TOUCHING_EVERY_STAGE, ids="-".join)
def test_switches_of_the_others_change_nothing(build, configured, names):
    """What is off is not built (the test above), so that mechanisms that touch every stage stand for the rest."""
    alone, beside = build(configured(*names)), build(configured(*names, off=others(*names)))
    expected, records = steps(alone, BEFORE), steps(beside, BEFORE)
    assert [{tag: each[tag] for tag in one} for each, one in zip(records, expected, strict=True)] == expected
    check_same(beside, alone)


def test_with_all_of_them_off_it_is_grpo_bit_for_bit(build, configured):
    off, plain = build(configured(off=list(ACTS))), build(configured())
    records, expected = steps(off, 3), steps(plain, 3)
    assert off.history is None and len(off.active) == 1
    assert [{tag: each[tag] for tag in one} for each, one in zip(records, expected, strict=True)] == expected
    check_same(off, plain)


@pytest.fixture(scope="module")
def refusal(configured):
    """Says why names do not go together; nothing if they do."""

    @functools.cache
    def ask(*names):
        try:
            configured(*names).validate()
        except ConfigError as error:
            return str(error)
        return ""

    return ask


@pytest.fixture(scope="module")
def shown():
    """The pairs that a run has shown."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ACTS)[:-1])
def test_it_composes_with_each_of_those_after_it_or_is_refused_in_one_line(
    build, configured, refusal, updates, tmp_path, shown, name
):
    for other in list(ACTS)[list(ACTS).index(name) + 1 :]:
        if error := refusal(name, other):
            assert "\n" not in error and "fix:" in error and name in error and other in error
        elif (name, other) not in shown:
            names = with_others(refusal, [name, other], shown)
            check_together(build, configured, updates, tmp_path / other, names)
            shown |= pairs_of(names)


def pairs_of(names):
    """The pairs that a run of them shows; beside masked responses, only those with the mask: less can be checked."""
    pairs = set(itertools.combinations(names, 2))
    return {pair for pair in pairs if "mask_truncated" in pair} if "mask_truncated" in names else pairs


def with_others(refusal, names, shown):
    """The names and those that add most pairs that were not shown yet, as long as all go together."""
    while len(names) < TOGETHER:
        larger = [[one for one in ACTS if one in (*names, more)] for more in ACTS if more not in (*names, *SWITCHES)]
        together = [each for each in larger if not any(refusal(*pair) for pair in itertools.combinations(each, 2))]
        best = max(together, key=lambda each: len(pairs_of(each) - shown), default=names)
        if pairs_of(best) - shown == pairs_of(names) - shown or refusal(*best):
            return names
        names = best
    return names


def check_together(build, configured, updates, folder, names):
    print("together:", *names)
    updates.clear()
    records, whole, _ = resumed_exactly(build, lambda: configured(*names), folder, BEFORE, AFTER)
    numbers = [value for record in records for value in record.values() if not isinstance(value, str)]
    assert np.isfinite(numbers).all()
    for minibatches in updates:
        check_rows(minibatches, some_masked="mask_truncated" in names)
    samples = [s for group in whole.batch.groups for s in group.samples if s.is_counted and not s.masked]
    assert all(np.shape(sample.advantages) in ((), (sample.rollout.response_length,)) for sample in samples)
    last = [row for rows in updates[-1] for row in rows if is_weighed(row)]
    assert [row.on_policy for row in last].count(False) == sum(sample.replayed for sample in samples)
    assert len(last) == len(samples)


def is_weighed(row):
    """Whether a row is one of a group: not only measured, and without an objective of its own."""
    return row.multiplicity > 0 and (row.on_policy or row.old_logprobs is not None)


def check_rows(minibatches, some_masked=False):
    """Weights of a training step sum to its optimizer steps; a replayed row has log-probs, and no importance weight.

    A masked response takes its part of the sum with it; one that is not counted has none.
    """
    weighed = [row for rows in minibatches for row in rows if is_weighed(row)]
    if weighed:
        total = sum(row.weight * row.response_length for row in weighed)
        assert total == pytest.approx(len(minibatches), rel=1e-5) or (some_masked and 0 < total < len(minibatches))
    for row in weighed:
        assert len(row.sampling_logprobs if row.on_policy else row.old_logprobs) == row.response_length
        assert row.old_logprobs is None or np.isfinite(row.old_logprobs).all()
