"""A token behind each answer: what engines say of it, how it weighs votes, and how well it tells answers apart."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from algorithms.evaluate import main
from algorithms.evaluation.metrics import benchmark_scores, majority_correct, weighted_majority_correct
from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.sampling import Sampler
from algorithms.evaluation.votes import Scale
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.models.unused_token import unused_token
from algorithms.rollout.types import Sampling
from r3env import chat
from tests.hand_made import answer

MODEL = "embedded:tiny"
ASKED = ["--model", MODEL, "--config", "configs/quickstart.yaml", "--data", "math=embedded:heldout", "--samples", "4"]
ASKED += ["evaluation.limit=10", "env_runners.max_response_tokens=40"]


@pytest.mark.parametrize(
    ("votes", "expected"),
    [
        ([("5", True, 0.2), ("5", True, 0.2), ("6", False, 0.3)], 1.0),
        ([("5", True, 0.2), ("5", True, 0.2), ("6", False, 0.5)], 0.0),  # plainly it would be right
        ([("5", True, 0.5), ("6", False, 0.5)], 0.5),
        ([("6", False, 0.3), ("6.", False, 0.3), ("5", True, 0.5)], 0.0),  # spelt alike
        ([(None, False, 0.9), ("5", True, 0.1)], 1.0),  # no answer, no vote
        ([("5", True, 0.0), ("5", True, 0.0), ("6", False, 0.0)], 1.0),  # no weights: a plain majority
        ([("5", True, 0.0), ("6", False, 0.0), ("6", False, 0.0), (None, False, 0.4)], 0.0),
        ([(None, False, 0.4)], 0.0),
    ],
)
def test_a_weighted_majority_by_hand(votes, expected):
    assert weighted_majority_correct(*zip(*votes, strict=True)) == pytest.approx(expected)


def test_with_equal_weights_it_is_the_plain_majority():
    rng = np.random.default_rng(0)
    for _ in range(50):
        answers = [str(rng.integers(3)) if rng.random() < 0.8 else None for _ in range(7)]
        correct = [answer == "1" for answer in answers]
        plain = majority_correct(answers, correct)
        assert weighted_majority_correct(answers, correct, [0.4] * 7) == pytest.approx(plain)


def response(uid, n, answer, correct, logprob, **more):
    own = Response("b", uid, None, n, "p", "r", answer, correct, False, "equal" if correct else "different", 4)
    return replace(own, asked_logprob=logprob, **more)


ANSWERS = [
    *(response("one", n, "7", True, logprob) for n, logprob in enumerate((-1.0, -2.0))),
    *(response("one", n, "9", False, logprob) for n, logprob in enumerate((-8.0, -9.0, None), 2)),
    *(response("two", n, "3", False, -5.0 - n) for n in range(5)),
]


def test_scores_have_the_weighted_majority_and_how_well_answers_are_told_apart():
    (plain,) = benchmark_scores(ANSWERS, ks=[1]).values()
    assert "confidence" not in plain and "weighted_maj@5" not in plain["scores"]
    (one,) = benchmark_scores(ANSWERS, ks=[1], scale=Scale(0.1)).values()
    assert one["scores"]["maj@5"].mean == 0.0 and one["scores"]["weighted_maj@5"].mean == 0.5
    assert one["confidence"]["asked"] == 9 and one["confidence"]["auc"] == 1.0
    assert one["confidence"]["correct"] == pytest.approx(0.1 * (np.mean([1, 2, 8, 9, 5, 6, 7, 8, 9]) - 1.5))
    (fixed,) = benchmark_scores(ANSWERS, ks=[1], scale=Scale(0.1, -5.0)).values()
    assert fixed["confidence"]["incorrect"] == pytest.approx(0.1 * (5 - np.mean([8, 9, 5, 6, 7, 8, 9])))
    ungraded = [replace(ANSWERS[0], verdict="timeout"), *ANSWERS[1:]]
    assert benchmark_scores(ungraded, ks=[1], scale=Scale(0.1))["b"]["confidence"]["asked"] == 8


def test_weights_lie_between_0_and_1():
    scale = Scale(0.1, -5.0)
    assert scale.weights([ANSWERS[0], ANSWERS[3], ANSWERS[4]]) == pytest.approx([0.4, 0.0, 0.0])
    assert Scale(10.0, -5.0).weights(ANSWERS[:1]) == [1.0]


def check_logprobs(answers, tolerance):
    """Each finished answer's number is that of a plain forward over prompt and answer."""
    tokenizer, model = load_tokenizer(resolve_model(MODEL)), resolve_model(MODEL)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    token = unused_token(tokenizer, policy.config.vocab_size, None, "x")
    finished = [one for one in answers if not one.truncated]
    assert finished and all(one.asked_logprob is None for one in answers if one.truncated)
    checked = 0
    for one in finished:
        prompt = chat.first_turn(tokenizer, [{"role": "user", "content": one.prompt}])
        written = tokenizer.encode(one.response, add_special_tokens=False)
        if len(written) + 1 != one.tokens:
            continue  # the policy spelt it with other tokens than the tokenizer does
        tokens = [*prompt, *written, tokenizer.eos_token_id]
        with torch.no_grad():
            expected = policy(input_ids=torch.tensor([tokens])).logits[0, -1].log_softmax(-1)[token].item()
        assert one.asked_logprob == pytest.approx(expected, abs=tolerance)
        checked += 1
    assert checked > len(finished) / 2


def evaluated(out, *settings):
    assert main([*ASKED, "--out", str(out), *settings]) == 0
    return ResponseFolder(out / "responses").read(), json.loads((out / "scores.json").read_text())["math"]


def test_the_command_measures_and_reports_it_and_samples_what_it_samples_without(tmp_path, capsys):
    plain, scores = evaluated(tmp_path / "plain")
    assert all(one.asked_logprob is None for one in plain) and "confidence" not in scores
    capsys.readouterr()
    asked, scores = evaluated(tmp_path / "asked", "benchmarks.confidence=true", "evaluation.temperature=0.9")
    same, _ = evaluated(tmp_path / "same", "benchmarks.confidence=true")
    assert [replace(one, asked_logprob=None) for one in same] == plain
    check_logprobs(asked, 1e-3)
    assert scores["confidence"]["asked"] == sum(one.asked_logprob is not None for one in asked)
    assert 0 <= scores["scores"]["weighted_maj@4"]["mean"] <= 1
    assert "separates correct from incorrect answers with AUC" in capsys.readouterr().out


def test_second_tries_are_not_asked():
    asked = []

    def rollout(requests):
        asked.append({request.sampling.asked_token for request in requests})
        said = ({"role": "assistant", "content": "no"},)
        return [answer(one, prompt=[3, 4], response=[5, 1], correct=False, messages=said) for one in requests]

    truncator = SimpleNamespace(attempt=lambda tokens, own, text, said: text, truncate=lambda attempt: attempt)
    Sampler(rollout, 2, Sampling(asked_token=7), lambda draw: 0, truncator).sample(["a", "b"])
    assert asked == [{7}, {None}]


def test_a_token_that_is_not_there_is_one_line(tmp_path, capsys):
    settings = ["benchmarks.confidence=true", "benchmarks.confidence_token=9999"]
    assert main([*ASKED, "--out", str(tmp_path / "out"), *settings]) == 2
    assert "benchmarks.confidence_token: the model has no token 9999" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_measures_the_same(tmp_path):
    options = "{max_model_len: 256, enforce_eager: true, gpu_memory_utilization: 0.2}"
    engine = ["--engine", "vllm", f"env_runners.vllm={options}", "benchmarks.confidence=true"]
    answers, scores = evaluated(tmp_path / "out", *engine, "evaluation.temperature=0.8")
    check_logprobs(answers, 1e-2)
    assert scores["confidence"]["asked"] > 0
