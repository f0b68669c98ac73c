"""Credit from another view: formulas from whole logits, and what the methods do in whole steps."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch

from algorithms.export import main as export
from algorithms.grpo.mechanism import Services
from algorithms.grpo.registry import mechanisms
from algorithms.grpo.samples import scoring_row, training_samples
from algorithms.grpo.types import Group, StepBatch
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from algorithms.methods import sdpo
from algorithms.models.names import resolve_model
from algorithms.rollout.types import Prompt, Split, Turn
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from algorithms.train.main import main

from .conftest import PROMPT_TOKENS, RESPONSE_LIMIT, Stages, as_groups, hand_made, preset, token_logprobs
from .test_formulas import gradients_of, of_formula, relative_error, rewards_of, standardized
from .test_method_runs import SMALL, fresh, scored
from .test_whole_runs import check_same, steps

VIEWS = ("sdpo", "opd", "ace")
FORWARD = ForwardSettings(token_budget=64)


def shown_tokens(text: str) -> np.ndarray:
    """What stands before a response that is shown this text."""
    return np.random.default_rng(crc32(text.encode())).integers(5, 40, 9).astype(np.int32)


def services(config: Any, lm: Any, other: Any) -> Services:
    """Real scoring under two models, and prompts that a test can write itself."""
    models = {"policy": lm, "reference": other, "teacher": other}

    def score_under(samples, under):
        rows = [scoring_row(sample) for sample in samples]
        return [logprobs for logprobs, _ in score(models[under], rows, FORWARD, entropy=False)]

    def measure(samples):
        for sample in (one for one in samples if one.old_logprobs is None):
            (sample.old_logprobs,) = score_under([sample], "policy")

    truncator = SimpleNamespace(text=lambda tokens, mask: " ".join(map(str, tokens[mask])))
    return Services(
        config=config,
        seed=0,
        uids=[],
        query=print,
        score=print,
        truncator=lambda limit: truncator,
        measure=measure,
        score_under=score_under,
        render=lambda prompt, room: shown_tokens(prompt.hint) if prompt.hint else None,
    )


def made(name: str, config: Any, lm: Any, other: Any) -> Any:
    kind = mechanisms()[name]
    return kind(getattr(config, f"{name}_settings"), services(config, lm, other))


def trained(lm: Any, groups: list[Group], config: Any, *mechanisms: Any) -> dict[str, torch.Tensor]:
    """The gradient of a step on these groups."""
    stages, batch, training = Stages(config), StepBatch(0, groups=groups), config.training_settings
    stages.active = list(mechanisms)
    stages.shape_rewards(batch)
    stages.compute_advantages(batch)
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    lm.zero_grad(set_to_none=True)
    accumulate_gradients(lm, training_samples(samples, training, RESPONSE_LIMIT), FORWARD, LossSettings.of(training))
    return gradients_of(lm)


def behind(lm: Any, context: np.ndarray, response: np.ndarray) -> torch.Tensor:
    """log π of a response behind a context, from whole logits."""
    tokens = torch.tensor([*context.tolist(), *response.tolist()])
    table = torch.log_softmax(lm(input_ids=tokens[None]).logits[0], -1)
    places = torch.arange(len(context), len(tokens))
    return table[places - 1, tokens[places]]


def per_token(lm: Any, groups: Any, advantages: Any) -> torch.Tensor:
    """The mean over all tokens of constant advantages times log π."""
    total, count = torch.zeros(()), 0
    for index, group in enumerate(groups):
        for place, response in enumerate(group):
            weights = torch.as_tensor(advantages(index, place, response), dtype=torch.float32).detach()
            logprobs = token_logprobs(lm, response)
            total, count = total + (weights * logprobs).sum(), count + len(logprobs)
    return total / count


@pytest.mark.parametrize(("reward", "cap"), [(0.0, 10.0), (0.5, 0.3)])
def test_opd_trains_by_its_formula(lm, reference, reward, cap):
    groups = hand_made(lm, own=0.0, shared=0.0, fresh=True)

    def advantages(index, place, response):
        gap = (token_logprobs(reference, response) - token_logprobs(lm, response)).clamp(-cap, cap)
        return 2.0 * gap + reward * standardized(rewards_of(groups[index]))[place]

    _, expected = of_formula(lm, lambda: per_token(lm, groups, advantages))
    config = preset("opd", f"opd.reward={reward}", f"opd.cap={cap}", "opd.coefficient=2")
    one = made("opd", config, lm, reference)
    assert relative_error(trained(lm, as_groups(groups), config, one), expected) < 1e-3
    gaps = torch.cat(
        [(token_logprobs(reference, r) - token_logprobs(lm, r)).detach() for group in groups for r in group]
    )
    assert one.metrics["opd/gap"] == pytest.approx(float(gaps.mean()), abs=1e-4)
    assert one.metrics["opd/capped"] == pytest.approx(float((gaps.abs() > cap).float().mean()))
    assert (one.metrics["opd/capped"] > 0) == (cap < 1)


@pytest.mark.parametrize(("mean", "cap"), [(False, 5.0), (False, None), (True, 5.0)])
def test_ace_trains_by_its_formula(lm, reference, mean, cap):
    groups = hand_made(lm, own=0.0, shared=0.0, fresh=True)

    def advantages(index, place, response):
        advantage = float(standardized(rewards_of(groups[index]))[place])
        if response.correct:
            return advantage
        shift = (token_logprobs(lm, response) - token_logprobs(reference, response)).detach()
        shift = shift.mean() if mean else shift.sum()
        if cap is not None:
            shift = shift.clamp(-cap, cap)
        return advantage * (1 + 0.7 * float(torch.nn.functional.softplus(shift)))

    _, expected = of_formula(lm, lambda: per_token(lm, groups, lambda *each: advantages(*each)))
    settings = (f"ace.per_token={str(mean).lower()}", f"ace.cap={'null' if cap is None else cap}")
    config = preset("ace", *settings, "ace.coefficient=0.7")
    one = made("ace", config, lm, reference)
    assert relative_error(trained(lm, as_groups(groups), config, one), expected) < 1e-3
    assert one.metrics["ace/factor"] > 1


def test_ace_leaves_positive_advantages_and_correct_responses_alone(lm, reference):
    """An estimator or another mechanism may pay an incorrect response, token by token."""
    config = preset("ace")
    one = made("ace", config, lm, reference)
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    one.before_advantages(StepBatch(0, groups=groups))
    sample = groups[0].samples[0]
    mixed = np.where(np.arange(sample.rollout.response_length) % 2, 1.0, -1.0).astype(np.float32)
    found = one.advantages(Group(Prompt("0"), [sample]), [mixed])[0]
    assert (found[1::2] == 1).all() and (found[::2] < -1).all()
    correct = groups[0].samples[1]
    assert (one.advantages(Group(Prompt("0"), [correct]), np.array([-1.0]))[0] == -1).all()


# Which response of a group is shown to each, where those at 1 and 2 are correct.
SIBLINGS = {0: 1, 1: 2, 2: 1, 3: 1}


def solution_text(response: Any) -> str:
    words = " ".join(map(str, response.tokens[PROMPT_TOKENS:]))
    return f"Here is a correct solution:\n{words}\n\nSolve the original question correctly."


def test_sdpo_trains_by_its_formula(lm):
    groups = hand_made(lm, own=0.0, shared=0.0, fresh=True)

    def advantages(index, place, response):
        context = shown_tokens(solution_text(groups[index][SIBLINGS[place]]))
        teacher = behind(lm, context, response.tokens[PROMPT_TOKENS:])
        return (teacher - token_logprobs(lm, response)).clamp(-0.8, 0.8)

    _, expected = of_formula(lm, lambda: per_token(lm, groups, advantages))
    config = preset("sdpo", "sdpo.cap=0.8")
    one = made("sdpo", config, lm, None)
    assert relative_error(trained(lm, as_groups(groups), config, one), expected) < 1e-3
    assert one.metrics["sdpo/solutions"] == 8 and one.metrics["sdpo/feedback"] == 0
    assert 0 < one.metrics["sdpo/capped"] < 1


def test_sdpo_shows_feedback_where_no_sibling_is_correct_and_leaves_others_to_the_reward(lm):
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    alone = groups[0]
    alone.samples = [alone.samples[0], alone.samples[1], alone.samples[3]]  # one correct response
    for place, said in ((0, "too large"), (1, "fine"), (2, "")):
        rollout = alone.samples[place].rollout
        alone.samples[place].rollout = replace(rollout, turns=(Turn(5, 8, feedback=said),))
    failed = groups[1]
    failed.samples = [failed.samples[0], failed.samples[3]]
    rollout = failed.samples[0].rollout
    failed.samples[0].rollout = replace(rollout, turns=(Turn(5, 8, feedback="too small"),))

    config = preset("sdpo", "sdpo.others=0.5", "sdpo.cap=null")
    one = made("sdpo", config, lm, None)
    trained(lm, groups, config, one)
    first, lone, last = alone.samples
    solution = " ".join(map(str, lone.rollout.response_tokens))
    closing = "\n\nSolve the original question correctly."
    for sample, text in (
        (first, f"Here is a correct solution:\n{solution}{closing}"),
        (lone, f"About an earlier attempt:\nfine{closing}"),
        (last, f"Here is a correct solution:\n{solution}{closing}"),
        (failed.samples[0], f"About an earlier attempt:\ntoo small{closing}"),
    ):
        written = sample.rollout.response_tokens
        with torch.no_grad():
            gap = behind(lm, shown_tokens(text), written) - behind(lm, sample.rollout.tokens[:PROMPT_TOKENS], written)
        np.testing.assert_allclose(sample.advantages, gap.numpy(), atol=2e-4)
    assert (failed.samples[1].advantages == 0).all(), "a group of equal rewards"
    assert one.metrics["sdpo/solutions"] == 2 and one.metrics["sdpo/feedback"] == 2
    assert one.is_informative(failed) and one.is_informative(alone)
    assert not one.is_informative(Group(failed.prompt, [failed.samples[1]]))
    without = made("sdpo", preset("sdpo", "sdpo.feedback=false"), lm, None)
    assert not without.is_informative(failed)
    without.before_advantages(StepBatch(0, groups=groups))
    assert without.metrics["sdpo/feedback"] == 0


def rows_of(config, groups, *mechanisms):
    """The rows that GRPO's stages and these mechanisms make, and the advantages of each."""
    stages, batch = Stages(config), StepBatch(0, groups=groups)
    stages.active = list(mechanisms)
    stages.shape_rewards(batch)
    stages.compute_advantages(batch)
    samples = [(index, sample) for index, group in enumerate(groups) for sample in group.samples]
    return training_samples(samples, config.training_settings, RESPONSE_LIMIT), [each.advantages for _, each in samples]


def total(rows):
    return sum(row.weight * row.response_length for row in rows)


@pytest.mark.parametrize("aggregation", ["token", "response", "constant"])
def test_sdpos_loss_is_a_mean_over_the_responses_that_were_shown_something(lm, aggregation):
    """Its authors mask the others out of the sum and of what divides it: `compute_self_distillation_loss`."""
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    for sample in (*groups[0].samples, groups[1].samples[2]):  # one of eight is correct, and has no correct sibling
        sample.rollout = replace(sample.rollout, correct=False)
    for place in (0, 2):  # nor does anything show the policy what it stored
        groups[1].samples[place].replayed = True

    def made_rows(*settings):
        config = preset("sdpo", "sdpo.feedback=false", f"training.loss_aggregation={aggregation}", *settings)
        return rows_of(config, groups, made("sdpo", config, lm, None))

    everyone, _ = made_rows("sdpo.others=1")
    lengths = [sample.rollout.response_length for group in groups for sample in group.samples]
    assert total(everyone) == pytest.approx(1 if aggregation != "constant" else sum(lengths) / 8 / RESPONSE_LIMIT)
    rows, advantages = made_rows()
    shown = [place for place, values in enumerate(advantages) if np.any(values)]
    assert shown == [7] and [row.weight > 0 for row in rows] == [place == 7 for place in range(8)]
    assert total(rows) == pytest.approx(1 if aggregation != "constant" else lengths[7] / RESPONSE_LIMIT)
    assert rows[0].multiplicity == 0 and rows[0].sampling_logprobs is not None, "it is measured all the same"


@pytest.mark.parametrize(("reward", "of_all"), [(0.0, True), (0.5, False)])
def test_opd_without_the_reward_is_a_mean_over_the_policys_own_samples(lm, reference, reward, of_all):
    groups = as_groups(hand_made(lm, own=0.3, shared=0.0, replayed=[0, 1]))
    config = preset("opd", f"opd.reward={reward}")
    rows, _ = rows_of(config, groups, made("opd", config, lm, reference))
    replayed = [sample.replayed for group in groups for sample in group.samples]
    own = [row for row, stored in zip(rows, replayed, strict=True) if not stored]
    assert total(rows) == pytest.approx(1) and (total(own) == pytest.approx(1)) == of_all


def test_sdpo_cuts_the_middle_out_of_a_long_solution(lm, monkeypatch):
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    solution = groups[0].samples[2]
    words = [str(token) for token in solution.rollout.response_tokens]
    assert len(words) == 18
    one = made("sdpo", preset("sdpo"), lm, None)
    for limit, expected in ((18, " ".join(words)), (5, f"{' '.join(words[:3])}\n[...]\n{' '.join(words[-2:])}")):
        monkeypatch.setattr(sdpo, "MAX_SOLUTION_TOKENS", limit)
        assert one._written(solution) == expected


def test_sdpo_never_shows_a_response_its_own_text_nor_that_of_another_prompt(lm):
    groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
    twin = groups[0].samples[1]
    equal = Group(Prompt("0"), [twin, replace(twin)])
    one = made("sdpo", preset("sdpo"), lm, None)
    one.before_advantages(StepBatch(0, groups=[equal]))
    assert one.gaps == {} and not one.is_informative(equal)
    # A response to another prompt, as a mechanism may put into a group.
    moved = replace(groups[0].samples[0], rollout=replace(groups[0].samples[0].rollout, context="hint"))
    mixed = Group(Prompt("0"), [moved, twin])
    one.before_advantages(StepBatch(0, groups=[mixed]))
    assert one.gaps == {}


@pytest.mark.parametrize("name", VIEWS)
def test_replayed_responses_keep_what_the_reward_gives(lm, reference, name):
    groups = as_groups(hand_made(lm, own=0.3, shared=0.0, replayed=[0, 1]))
    kept = ("opd.reward=0.5",) if name == "opd" else ("sdpo.others=0.5",) if name == "sdpo" else ()
    config = preset(name, *kept)
    plain = [[sample.advantages for sample in group.samples] for group in _rewarded(lm, config)]
    for group in groups:
        for sample in group.samples:
            sample.reward = float(sample.rollout.correct)
    stages = Stages(config)
    stages.active = [made(name, config, lm, reference)]
    stages.compute_advantages(StepBatch(0, groups=groups))
    for group, own in zip(groups, plain, strict=True):
        for place in (0, 1):
            np.testing.assert_allclose(group.samples[place].advantages, (0.5 if kept else 1) * own[place], rtol=1e-5)
        assert not np.allclose(group.samples[3].advantages, own[3])


def _rewarded(lm, config):
    groups = as_groups(hand_made(lm, own=0.3, shared=0.0))
    for group in groups:
        for sample in group.samples:
            sample.reward = float(sample.rollout.correct)
    Stages(config).compute_advantages(StepBatch(0, groups=groups))
    return groups


# -- Whole steps. --------------------------------------------------------------------------------------------------


def test_opd_moves_the_policy_to_an_exported_run(build, tmp_path):
    """The teacher is a run of this library; what it is measured by is a pass of its own over the exported folder."""
    arguments = ("--config", "configs/quickstart.yaml", "run.steps=1", f"run.dir={tmp_path}", "run.name=first")
    small = ("training.lr=1e-3", "training.queries_per_step=4", "evaluation.limit=2", "evaluation.samples=1")
    assert main("grpo", [*arguments, *small, "evaluation.k=[1]", "training.warmup_steps=0"]) == 0
    assert export([str(tmp_path / "first"), str(tmp_path / "teacher")]) == 0
    algorithm = build(preset("opd", *SMALL, "training.lr=1e-4", f"opd.teacher={tmp_path / 'teacher'}"))
    learner = algorithm.learner_group._learner
    policy, teacher = copy.deepcopy(learner.lm).eval(), copy.deepcopy(learner.teacher)
    assert any(not torch.equal(a, b) for a, b in zip(policy.parameters(), teacher.parameters(), strict=True))
    records = steps(algorithm, 1)
    samples = fresh(algorithm)
    found = [scored(lm, samples, learner) for lm in (policy, teacher)]
    for sample, (own, _), (theirs, _) in zip(samples, *found, strict=True):
        np.testing.assert_allclose(sample.advantages, np.clip(theirs - own, -10, 10), atol=1e-4)
    after = scored(learner.lm, samples, learner)
    moved = [
        sample.advantages * (now - own) for sample, (own, _), (now, _) in zip(samples, found[0], after, strict=True)
    ]
    assert sum(float(each.sum()) for each in moved) > 0, "likelier where the teacher finds them likelier"
    assert records[0]["opd/gap"] < 0, "minus a KL"
    assert all(torch.equal(a, b) for a, b in zip(learner.teacher.parameters(), teacher.parameters(), strict=True))


def test_the_embedded_teacher_is_far_from_the_embedded_model_on_its_problems(build):
    records = steps(build(preset("opd", *SMALL, "training.lr=2e-4")), 2)
    assert records[0]["opd/gap"] < -0.05 and records[0]["opd/gap_size"] > 0.1
    assert all(record["groups/zero_advantage"] == 0 for record in records)


def test_sdpo_shows_what_an_env_runner_would_write(build, lm):
    algorithm = build(preset("sdpo", *SMALL, "sdpo.solution_text='{solution}'"))
    (record,) = steps(algorithm, 1)
    assert record["sdpo/solutions"] > 0 and record["sdpo/gap_size"] > 0
    tokenizer, checked = algorithm.tokenizer, 0
    for group in algorithm.batch.groups:
        problem = algorithm.services.query(group.prompt.uid).problem
        for sample in group.samples:
            prompt = sample.rollout.tokens[: sample.rollout.prompt_length]
            np.testing.assert_array_equal(algorithm.services.render(group.prompt, 1), prompt)
            if not np.any(sample.advantages):
                continue
            correct = [one for one in group.samples if one is not sample and one.rollout.correct]
            texts = {tokenizer.decode(one.rollout.response_tokens, skip_special_tokens=True) for one in correct}
            gaps = []
            for text in texts:
                turn = [{"role": "user", "content": f"{problem}\n\n{text}"}]
                context = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
                with torch.no_grad():
                    shown = behind(lm, np.array(context), sample.rollout.response_tokens)
                    gaps.append((shown - behind(lm, prompt, sample.rollout.response_tokens)).clamp(-10, 10))
            assert min(float((gap - torch.tensor(sample.advantages)).abs().max()) for gap in gaps) < 1e-3
            checked += 1
    assert checked == record["sdpo/solutions"]


def test_sdpo_shows_nothing_where_an_environment_begins_otherwise_with_each_seed(build):
    algorithm = build(preset("sdpo", *SMALL))
    environment = algorithm.environments[Split.TRAIN].unwrapped
    reset = environment.reset

    def seeded(*, seed=None, options=None):
        text, info = reset(seed=seed, options=options)
        return f"{text} {seed}", info

    environment.reset = seeded
    (record,) = steps(algorithm, 1)
    assert record["sdpo/solutions"] == 0 and record["groups/zero_advantage"] == 1


def test_ace_keeps_a_reference_without_a_penalty(build):
    algorithm = build(preset("ace", *SMALL, "training.lr=1e-3"))
    learner = algorithm.learner_group._learner
    assert learner.config.training_settings.beta == 0 and learner.reference is not None
    records = steps(algorithm, 3)
    assert records[0]["ace/shift"] == pytest.approx(0, abs=1e-4)
    assert records[0]["ace/factor"] == pytest.approx(1 + np.log(2), abs=1e-4)
    assert abs(records[-1]["ace/shift"]) > 1e-3 and records[-1]["policy/kl"] == 0


def test_a_resumed_run_says_that_its_teacher_is_another_one(build, tmp_path, caplog):
    folder = Path(shutil.copytree(resolve_model("embedded:teacher"), tmp_path / "teacher"))

    def config():
        return preset("opd", *SMALL, f"opd.teacher={folder}")

    path = save_checkpoint(build(config()), tmp_path / "checkpoints")
    load_checkpoint(build(config()), path)
    assert "is another model" not in caplog.text
    shutil.copy(Path(resolve_model("embedded:tiny"), "model.safetensors"), folder)
    load_checkpoint(build(config()), path)
    assert "opd.teacher is another model than at the checkpoint" in caplog.text


def test_switched_off_they_are_grpo_bit_for_bit(build):
    names = f"training.mechanisms=[{','.join(VIEWS)}]"
    off = build(preset("ace", *SMALL, names, *(f"{name}.enabled=false" for name in VIEWS)))
    plain = build(preset("ace", *SMALL, "training.mechanisms=[]"))
    learner = off.learner_group._learner
    assert learner.teacher is None and learner.reference is None
    records, expected = steps(off, 2), steps(plain, 2)
    assert [
        {tag: value for tag, value in record.items() if tag.partition("/")[0] not in VIEWS} for record in records
    ] == expected
    check_same(off, plain)


def test_all_three_go_together_with_replay_and_the_kl_of_the_reward(build):
    every = "training.mechanisms=[replay,sdpo,opd,ace]"
    more = ("opd.reward=0.5", "sdpo.others=1", "training.kl_in=reward", "training.beta=0.01", "training.minibatches=2")
    records = steps(build(preset("ace", *SMALL, "training.lr=2e-4", every, *more)), 4)
    assert all(np.isfinite(record["policy/loss"]) and record["policy/skipped_steps"] == 0 for record in records)
    assert all(
        sum(record[tag] for record in records) > 0 for tag in ("opd/gap_size", "sdpo/solutions", "ace/overconfident")
    )
    assert records[0]["policy/kl"] != records[-1]["policy/kl"] != 0
