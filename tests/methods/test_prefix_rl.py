"""PrefixRL: which queries get the beginning of which success, how much of it, and what an error in it is."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.types import StepBatch
from algorithms.history.store import ReplayHistory
from algorithms.methods import prefix_rl as module
from algorithms.methods.prefixes import body_length, encode_text, flawed_prefix, plant_error
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from tests.maths.strategies import entry

from .simulated import group, made, services

WORK = "7+8=15-9=6+4=10-2=8+5=13"
SUCCESS = WORK + r"\boxed{13}"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("embedded:tiny"))


def ids(tokenizer, text, *, ended=True):
    return tuple([*tokenizer.encode(text, add_special_tokens=False), *([tokenizer.eos_token_id] if ended else [])])


def prefix_rl(tokenizer, *stored, attempts=((0, 4),), limit=48, uids=("q", "other"), info=None, **settings):
    """The mechanism over a history of these entries, and of (correct, all) attempts at q."""
    history = ReplayHistory()
    for each in stored:
        history.add(each)
    for correct, count in attempts:
        for number in range(count):
            history.record("q", number < correct, float(number < correct))
    config = SimpleNamespace(env_runners_settings=SimpleNamespace(max_response_tokens=limit))
    columns = info or {}
    given = services(
        uids=uids,
        config=config,
        opened_history=history,
        opened_tokenizer=tokenizer,
        info=lambda uid: columns if uid == "q" else {},
    )
    return made("prefix_rl", given, **settings)


def success(tokenizer, text=SUCCESS, **more):
    return entry(response=ids(tokenizer, text), correct=True, **more)


def test_a_prefix_is_a_share_of_the_work_token_for_token_and_a_group_of_its_own(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "PER_QUERY", 200)
    stored = success(tokenizer)
    one = prefix_rl(tokenizer, stored)
    prompts = one.prompts(["q", "other"], 5)
    body = len(ids(tokenizer, WORK, ended=False))
    assert len(prompts) == 200 and {(p.uid, p.context, p.baseline, p.size) for p in prompts} == {
        ("q", "prefix", None, None)
    }
    lengths = [len(prompt.response_prefix) for prompt in prompts]
    assert all(
        prompt.response_prefix.tolist() == stored.response_tokens[: len(prompt.response_prefix)].tolist()
        for prompt in prompts
    )
    assert set(lengths) == set(range(int(0.4 * body), int(0.8 * body) + 1)) - {int(0.8 * body)} | {max(lengths)}
    assert min(lengths) == int(0.4 * body) and max(lengths) <= 0.8 * body
    assert one.metrics["prefix_rl/prompts"] == 200 and one.metrics["prefix_rl/flawed"] == 0
    again = prefix_rl(tokenizer, stored).prompts(["q", "other"], 5)
    assert [prompt.response_prefix.tolist() for prompt in again] == [
        prompt.response_prefix.tolist() for prompt in prompts
    ]


@pytest.mark.parametrize(
    ("attempts", "threshold", "hard"),
    [(((0, 4),), 0.5, True), (((1, 2),), 0.5, False), ((), 0.5, False), ((), 1.0, True), (((4, 4),), 1.0, True)],
)
def test_hard_queries_are_those_that_mostly_fail(tokenizer, attempts, threshold, hard):
    one = prefix_rl(tokenizer, success(tokenizer), attempts=attempts, threshold=threshold)
    assert len(one.prompts(["q", "q"], 0)) == (3 if hard else 0)


def test_only_plain_successes_of_one_turn_are_begun(tokenizer):
    first, second = ids(tokenizer, "7+8="), ids(tokenizer, SUCCESS)
    turns = entry(response=(*first, 4, 4, *second), correct=True)
    mask = np.array(turns.loss_mask)
    mask[2 + len(first) : 4 + len(first)] = False
    several = type(turns)(**{**vars(turns), "loss_mask": mask, "old_logprobs": turns.old_logprobs[:-2]})
    others = (
        several,
        success(tokenizer, context="reflection"),
        success(tokenizer, context="prefix"),
        entry(response=ids(tokenizer, "7+8=14")),
    )
    assert prefix_rl(tokenizer, *others).prompts(["q"], 0) == []
    assert len(prefix_rl(tokenizer, *others, success(tokenizer, step=9)).prompts(["q"], 0)) == 3


def test_a_prefix_ends_before_the_answer(tokenizer):
    for work, answer in ((WORK, r"\boxed{13}"), ("7+8=15</thin", "k>"), ("thus ", "</think>1+1"), ("", r"\boxed{1}")):
        tokens = np.array(ids(tokenizer, work + answer), np.int32)
        expected = work.removesuffix("</thin")
        assert tokenizer.decode(tokens[: body_length(tokenizer, tokens)]) == expected
    assert body_length(tokenizer, np.array(ids(tokenizer, "7+8"), np.int32)) == len(ids(tokenizer, "7+8", ended=False))
    assert body_length(tokenizer, np.array([tokenizer.eos_token_id])) == 0
    assert prefix_rl(tokenizer, success(tokenizer, r"\boxed{13}")).prompts(["q"], 0) == [], "all of it is answer"


def test_prefix_and_continuation_are_one_response_within_the_limit(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "PER_QUERY", 20)
    one = prefix_rl(tokenizer, success(tokenizer), limit=10)
    assert max(len(prompt.response_prefix) for prompt in one.prompts(["q"], 0)) == 8
    assert type(one).quoted_tokens(one.settings, 10) == 0 and type(one).extra_prompts(one.settings, 4) == 80


@pytest.mark.parametrize(
    ("source", "stored", "begins"), [("data", True, "9"), ("both", True, "7"), ("both", False, "9")]
)
def test_solutions_of_the_data(tokenizer, source, stored, begins):
    entries = [success(tokenizer)] if stored else []
    one = prefix_rl(tokenizer, *entries, source=source, info={"solution": "9+9=18<|end|>-1=17-2=15"})
    texts = [tokenizer.decode(prompt.response_prefix) for prompt in one.prompts(["q"], 0)]
    assert len(texts) == 3 and all(text.startswith(begins) for text in texts)
    spelled = encode_text(tokenizer, "<|end|>")
    assert tokenizer.eos_token_id not in spelled and tokenizer.decode(spelled) == "<|end|>"


def test_data_without_solutions_is_one_line(tokenizer):
    with pytest.raises(ConfigError, match=r"environment.columns.solution: no query has a solution; fix: name the data"):
        prefix_rl(tokenizer, source="data", info={"proof": "1"})
    one = prefix_rl(tokenizer)
    with pytest.raises(ConfigError, match=r"prefix_rl.low: 0.9 is above prefix_rl.high=0.8; fix"):
        one.check(type(one.settings)(low=0.9), None)


# -- Flawed prefixes --------------------------------------------------------------------------------------------------


def differences(one, other):
    """The numbers in which two texts of the same shape differ."""
    assert re.sub(r"\d+", "n", one) == re.sub(r"\d+", "n", other)
    return [(a, b) for a, b in zip(re.findall(r"\d+", one), re.findall(r"\d+", other), strict=True) if a != b]


@pytest.mark.parametrize("kind", ["digit", "step"])
def test_exactly_one_error_is_planted(kind):
    rng, results = np.random.default_rng(0), set()
    for _ in range(300):
        ((was, became),) = differences(WORK, plant_error(WORK, kind, rng))
        results.add(abs(int(became) - int(was)))
        assert kind == "step" or len(was) == len(became) and str(int(became)) == became, "one digit, none in front"
    assert kind != "step" or results == {1, 2}


@pytest.mark.parametrize("kind", ["digit", "step", "sign"])
def test_the_last_place_is_the_one_behind_which_nothing_is_right(kind):
    rng = np.random.default_rng(0)
    for _ in range(50):
        wrong = plant_error(WORK, kind, rng)
        assert wrong != WORK and wrong.startswith(WORK[:-5]), "13 is the last result, +5 the last sign"
        place = next(place for place in range(len(WORK)) if wrong[: place + 1] != WORK[: place + 1])
        assert kind == "sign" or place >= len(WORK) - 2
        assert kind != "sign" or wrong == WORK[:-5] + "-5=13"


def test_text_without_a_number_has_no_error_and_a_step_without_a_result_a_digit():
    rng = np.random.default_rng(0)
    assert (
        plant_error("thus", "digit", rng) == plant_error("thus", "step", rng) == plant_error("a-b", "sign", rng) == ""
    )
    assert differences("7+8", plant_error("7+8", "step", rng))


def test_a_share_of_the_prefixes_is_flawed_and_has_a_name_of_its_own(tokenizer, monkeypatch):
    monkeypatch.setattr(module, "PER_QUERY", 400)
    one = prefix_rl(tokenizer, success(tokenizer), flawed=0.25, flaw="step")
    prompts = one.prompts(["q"], 0)
    flawed = [prompt for prompt in prompts if prompt.context == "flawed_prefix"]
    assert len(flawed) == one.metrics["prefix_rl/flawed"] == pytest.approx(100, abs=25)
    for prompt in flawed:
        text = tokenizer.decode(prompt.response_prefix)
        right = next(WORK[:n] for n in range(len(WORK)) if re.sub(r"\d+", "n", WORK[:n]) == re.sub(r"\d+", "n", text))
        assert len(differences(right, text)) in (1, 2), "a number that the cut goes through is another one too"
    intact = {tokenizer.decode(prompt.response_prefix) for prompt in prompts if prompt.context == "prefix"}
    assert all(WORK.startswith(text) for text in intact)
    assert not any(WORK.startswith(tokenizer.decode(prompt.response_prefix)) for prompt in flawed)


def test_control_tokens_in_a_prefix_leave_it_whole(tokenizer):
    tokens = np.array([*ids(tokenizer, "7+8=15"), 9], np.int32)
    assert flawed_prefix(tokenizer, tokens, "digit", np.random.default_rng(0)) is None
    assert flawed_prefix(tokenizer, tokens[:-2], "digit", np.random.default_rng(0)) is not None


def test_correct_and_recovered_are_the_shares_of_fresh_responses(tokenizer):
    one = prefix_rl(tokenizer)
    groups = [
        group("q", 1, 1, 0, 1, context="prefix", replayed=(0, 0)),
        group("q", 0, 0, context="prefix"),
        group("q", 0, 1, 0, 0, context="flawed_prefix"),
        group("q", 1, 1),
    ]
    one.update_history(StepBatch(0, groups=groups[:2], dropped=groups[2:]))
    assert one.metrics["prefix_rl/correct"] == 0.5 and one.metrics["prefix_rl/recovered"] == 0.25
