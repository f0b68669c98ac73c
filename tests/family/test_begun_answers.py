"""PrefixRL and Cog-DRIFT in whole steps of the embedded model: what the policy saw, and what was judged and trained."""

import pytest

from algorithms.rollout.conversation import conversation
from benchmarks.embedded_model.build import fill_in
from r3env.grading import grade
from tests.hand_made import small_pool

from .conftest import preset

SMALL = ("training.queries_per_step=8", "training.group_size=4", "training.minibatches=1", "training.warmup_steps=0")
SMALL += ("env_runners.max_response_tokens=40", "training.lr=1e-5")


def groups(algorithm, steps):
    found = []
    for _ in range(steps):
        algorithm.train()
        found += algorithm.batch.rolled_out
    return found


def share(samples):
    return sum(sample.rollout.correct for sample in samples) / len(samples)


def test_prefixes_are_no_part_of_what_is_trained_and_help_unless_they_are_wrong(build, tmp_path):
    settings = ("prefix_rl.threshold=1", "prefix_rl.flawed=0.5", "prefix_rl.flaw=step", "prefix_rl.low=0.7")
    algorithm = build(preset("prefix_rl", *SMALL, f"environment.data={small_pool(tmp_path, 8)}", *settings))
    found, decode = groups(algorithm, 6), algorithm.tokenizer.decode
    by_context = {name: [g for g in found if g.prompt.context == name] for name in ("plain", "prefix", "flawed_prefix")}
    assert all(by_context.values())
    answers = {query.uid: query.answer for query in map(algorithm.services.query, algorithm.services.uids)}
    for group in by_context["prefix"] + by_context["flawed_prefix"]:
        for rollout in (sample.rollout for sample in group.fresh):
            start, begun = rollout.prompt_length, group.prompt.response_prefix
            assert rollout.tokens[start - len(begun) : start].tolist() == begun.tolist()
            assert not rollout.loss_mask[:start].any() and len(begun) + rollout.response_length <= 40
            (_, judged) = conversation(rollout, algorithm.tokenizer)
            assert judged["content"] == decode(rollout.tokens[start - len(begun) :], skip_special_tokens=True)
            if not rollout.truncated:
                assert rollout.correct == grade(judged["content"], answers[rollout.uid]).correct
    solved = {group.prompt.uid for group in by_context["prefix"]}
    plain = [sample for group in by_context["plain"] if group.prompt.uid in solved for sample in group.fresh]
    intact, flawed = ([s for g in by_context[name] for s in g.fresh] for name in ("prefix", "flawed_prefix"))
    assert share(intact) > share(plain) > share(flawed)


@pytest.mark.slow
def test_forms_are_posed_and_graded_and_kept_apart_in_the_history(build, tmp_path):
    algorithm = build(preset("cog_drift", *SMALL, "training.mechanisms=[cog_drift,replay]"))
    found = groups(algorithm, 3)
    posed = [group for group in found if group.prompt.variant]
    assert posed and all(group.prompt.context == group.prompt.variant == "fill_in" for group in posed)
    history = algorithm.history
    for group in posed:
        query = algorithm.services.query(group.prompt.uid)
        problem, judged = conversation(group.fresh[0].rollout, algorithm.tokenizer)
        assert problem["content"] == fill_in(query.problem)
        assert group.fresh[0].rollout.truncated or group.fresh[0].rollout.correct == grade(
            judged["content"], query.answer
        ).correct  # fmt: skip
        entries = [*history.entries(query.uid, correct=True), *history.entries(query.uid, correct=False)]
        assert {entry.context for entry in entries} == {"fill_in"} and history.attempts(query.uid) == 0
