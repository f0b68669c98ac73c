"""Episodes that continue behind the policy's own summary: rows, limits, and log-probs of engine and learner.

Its name puts it behind the tests that start and close a vLLM of their own: that ends the one of the session.
"""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.learner.batch import TrainingSample
from algorithms.models.names import check_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.context_window import context_use, validate_context
from algorithms.preflight.environments import validate_environment
from algorithms.rollout import turns as turns_module
from algorithms.rollout.conversation import conversation
from algorithms.rollout.engines.base import Completion, FinishReason
from algorithms.rollout.episode_record import Episode
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.rllib_episodes import ObservedTurns, RunnerCallbacks
from algorithms.rollout.summaries import INSTRUCTION
from algorithms.rollout.turns import Turns
from algorithms.rollout.types import NEW_CONTEXT, Prompt, Request, Sampling, Split
from r3env.chat import ChatFormat
from r3env.core import Query, Reason, Verdict, VerifiableEnv
from tests.chat_families import FAMILIES, THOUGHT, encode, make_tokenizer
from tests.tools.templates import published

from .full_forward import assert_the_learner_agrees
from .requests import requests_of
from .test_prompts import GUIDANCE, PROBLEM, Judged

END, RESPONSE = "<|im_end|>", 40
FIRST = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
)
ANSWERS = ("9", "10", "No.", "11")  # the third one is the summary


REAL_FIRST = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(params=["qwen2_5", pytest.param("real", marks=pytest.mark.real)])
def templated(request):
    """A tokenizer with the template that a family has published, and what it writes of the first prompt."""
    if request.param != "real":
        return published(request.param), FIRST
    return load_tokenizer(str(request.getfixturevalue("real_model"))), REAL_FIRST


def user(text):
    """The turn behind one that the policy has ended."""
    return f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def sampling_of(tokenizer, text, summaries, room=0):
    """With the least limit with which a turn of the policy may follow this context."""
    asking = len(encode(tokenizer, END + user(INSTRUCTION["content"])))
    limit = len(encode(tokenizer, text)) + 2 * RESPONSE + asking + room
    return Sampling(max_response_tokens=RESPONSE, max_context_tokens=limit, max_summaries=summaries)


def played(tokenizer, sampling, answers, environment, form=None, make=Turns):
    turns = make(tokenizer, None, form or ChatFormat())
    episode = Episode(Request(0, Prompt("q"), 0, 0, sampling), environment, 0)
    turns.begin(episode)
    seeds = []
    for answer in answers:
        assert not episode.done, episode.error
        request = turns.generation_request(episode)
        seeds.append(request.seed)
        tokens = np.array(encode(tokenizer, answer + END), np.int32)
        turns.step(episode, Completion(tokens, np.zeros(len(tokens), np.float32), FinishReason.STOP))
    assert episode.error is None and len({*seeds}) == len(seeds)
    return episode


class Reads(Judged):
    """Keeps what it has read to itself."""

    def __init__(self, max_turns=3):
        super().__init__(max_turns)
        self.read = []


def test_the_rows_by_hand(templated):
    (tokenizer, opening), environment = templated, Reads()
    before = opening + ANSWERS[0] + END + user(GUIDANCE)
    episode = played(tokenizer, sampling_of(tokenizer, before, 1, room=2), ANSWERS, environment)
    rollout = episode.rollout(0)
    first = before + ANSWERS[1] + END + user(INSTRUCTION["content"]) + ANSWERS[2] + END
    second = opening + ANSWERS[2] + END + user(GUIDANCE) + ANSWERS[3] + END
    assert rollout.tokens.tolist() == [*encode(tokenizer, first), NEW_CONTEXT, *encode(tokenizer, second)]
    assert tokenizer.decode(rollout.tokens[rollout.loss_mask]) == "".join(answer + END for answer in ANSWERS)
    assert environment.read == ["9", "10", "11"], "it judges no summary"
    contents = [PROBLEM, "9", GUIDANCE, "10", INSTRUCTION["content"], ANSWERS[2], GUIDANCE, "11"]
    assert [message["content"] for message in conversation(rollout, tokenizer)] == contents
    assert sum(rollout.turn_lengths) == rollout.response_length and len(rollout.turns) == 4
    assert [turn.feedback for turn in rollout.turns] == [GUIDANCE, GUIDANCE, "", ""]
    assert episode.done and not rollout.truncated and rollout.verdict == "different"
    (_, own), (context, last) = TrainingSample(rollout.tokens, rollout.loss_mask).sequences
    assert tokenizer.decode(context[last]) == "11" + END and own.sum() + last.sum() == rollout.response_length


def test_an_episode_that_needs_one_more_summary_ends_as_truncated():
    tokenizer = published("qwen2_5")
    sampling = sampling_of(tokenizer, FIRST + "9" + END + user(GUIDANCE), 0, room=-1)
    episode = played(tokenizer, sampling, ("9",), Reads())
    assert episode.done and episode.truncated and (episode.verdict, episode.correct) == ("cut_off", False)
    assert tokenizer.decode(episode.tokens) == FIRST + "9" + END and episode.mask[-1]


def test_an_observation_that_leaves_no_room_behind_a_summary_ends_the_episode():
    class Talks(Reads):
        def feedback(self, query, response, verdict):
            return GUIDANCE * 20

    tokenizer = published("qwen2_5")
    sampling = sampling_of(tokenizer, FIRST + "9" + END + user(GUIDANCE), 7)
    episode = played(tokenizer, sampling, ("9", "Not 9."), Talks())
    assert episode.done and episode.truncated and NEW_CONTEXT not in episode.tokens
    assert len(episode.turns) == 2 and episode.mask[-1]


def test_conversations_that_are_rendered_anew_hold_the_summary_without_its_reasoning():
    tokenizer = make_tokenizer(FAMILIES["qwen3"].template)
    sampling = Sampling(max_response_tokens=RESPONSE, max_context_tokens=355, max_summaries=7)
    environment, long = Reads(max_turns=2), "9" * 20
    rollout = played(tokenizer, sampling, (long, THOUGHT, "11"), environment, ChatFormat(rerender=True)).rollout(0)
    asked = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": long}, dict(INSTRUCTION)]
    behind = [asked[0], {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": GUIDANCE}]
    _, *contexts = TrainingSample(rollout.tokens, rollout.loss_mask).sequences
    assert [tokens[~mask].tolist() for tokens, mask in contexts] == [
        encode(tokenizer, tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        for turns in (asked, behind)
    ]
    assert environment.read == [long, "11"]


def test_callbacks_see_a_summary_as_a_step_without_reward():
    tokenizer, seen = published("qwen2_5"), []
    config = GRPOConfig().callbacks(on_episode_step=lambda *, episode, **_: seen.append(episode.get_actions(-1)))
    callbacks = RunnerCallbacks(SimpleNamespace(config=config, metrics=MetricsLogger(root=False)))
    sampling = sampling_of(tokenizer, FIRST + ANSWERS[0] + END + user(GUIDANCE), 1, room=2)
    episode = played(tokenizer, sampling, ANSWERS, Reads(), make=functools.partial(ObservedTurns, callbacks))
    written = episode.observed
    assert seen == list(ANSWERS) == written.get_actions()
    assert written.get_observations(slice(1, None)) == [GUIDANCE, INSTRUCTION["content"], GUIDANCE, ""]
    assert written.get_rewards() == [0.0] * 4 and written.is_terminated


# -- With engines. ---------------------------------------------------------------------------------------------------

SHORT = {"role": "user", "content": "+1+1"}
SAMPLING = Sampling(2.0, max_response_tokens=12, max_context_tokens=80, max_summaries=2)  # hot: long answers


class Never(VerifiableEnv):
    """Takes no answer."""

    def __init__(self):
        super().__init__(max_turns=8, reflection_guidance="Wrong. Try again.")

    def load_queries(self):
        return [Query(f"q{number}", f"7+1+9-5-{number}", "10") for number in range(8)]

    def verify(self, query, response):
        return Verdict(False, Reason.DIFFERENT)


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def rollouts(request, tokenizer):
    engine = request.getfixturevalue("engine" if request.param == "transformers" else "vllm_engine")
    with pytest.MonkeyPatch.context() as patch:  # the model's tokenizer has a token for each letter
        patch.setattr(turns_module, "INSTRUCTION", SHORT)
        runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, Never))
        return runner.rollout(requests_of([f"q{number}" for number in range(8)] * 2, sampling=SAMPLING))


def test_no_context_exceeds_the_limit_and_each_begins_with_the_prompt_and_the_summary(rollouts, tokenizer):
    ends = set()
    for rollout in rollouts:
        assert rollout.error is None
        contexts = TrainingSample(rollout.tokens, rollout.loss_mask).sequences
        assert all(len(tokens) <= SAMPLING.max_context_tokens for tokens, _ in contexts)
        prompt = rollout.tokens[: rollout.prompt_length].tolist()
        for (before, own), (after, written) in zip(contexts, contexts[1:], strict=False):
            summary = before[np.flatnonzero(~own)[-1] + 1 :].tolist()
            start = after[: written.argmax()].tolist()
            assert start[: len(prompt) + len(summary)] == [*prompt, *summary]
            said = tokenizer.decode(start[len(prompt) + len(summary) :]).removeprefix("<|end|>")
            assert said == "<|user|>Wrong. Try again.<|end|><|assistant|>"
        ends.add((len(contexts), rollout.truncated))
    assert max(ends) == (3, True), "some run out of summaries"


def test_the_learner_computes_the_log_probs_that_the_engine_sampled_with(rollouts, policy):
    assert_the_learner_agrees(policy, rollouts, SAMPLING.temperature)


def test_an_episode_that_fits_is_what_it_was(engine, tokenizer):
    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, Never))
    uids, plain = [f"q{number}" for number in range(4)], Sampling(max_response_tokens=12)
    wide = Sampling(max_response_tokens=12, max_context_tokens=1000, max_summaries=2)
    one, other = (runner.rollout(requests_of(uids, sampling=sampling)) for sampling in (plain, wide))
    assert [each.tokens.tolist() for each in one] == [each.tokens.tolist() for each in other]


# -- Before a run. ---------------------------------------------------------------------------------------------------


def checked(*given):
    given = ["env_runners.max_response_tokens=20", "env_runners.max_context_tokens=400", *given]
    config, _ = load("configs/quickstart.yaml", given, GRPOConfig)
    config.check_settings()
    model = check_model(config.rl_module_settings)
    use = context_use(config, validate_environment(config), model.context)
    validate_context(config, model, use)
    return use


def test_no_context_is_longer_than_the_models():
    assert checked("env_runners.max_context_tokens=4096", "environment.max_turns=4").longest == 1024


def test_what_a_run_needs():
    use = checked("environment.max_turns=3")
    assert use.least < 400 and use.row == 3 * use.longest > 3 * use.plain
    assert checked("environment.max_turns=30").longest == 400 and checked("environment.max_turns=30").row == 8 * 400


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "400 has no effect: r3env/Math-v0 has episodes of one turn .max_turns.; fix: .*=null, or a"),
        (["environment.max_turns=3", "env_runners.response_chunks=2"], "400 is counted in whole responses, .*chunks=1"),
        (
            ["environment.id=r3env/Agent-v0", "environment.options={agent: examples.two_opinions:solve}"],
            "400 has no effect: r3env/Agent-v0 runs agents, which write their contexts themselves; fix: .*=null$",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(given, line):
    with pytest.raises(ConfigError, match=f"^env_runners.max_context_tokens: {line}"):
        checked(*given)


def test_a_limit_that_holds_no_turn_is_one_line_with_fixes_that_work():
    several = "environment.max_turns=3"
    least = checked(several).least
    assert checked(several, f"env_runners.max_context_tokens={least}").least == least
    short = f"env_runners.max_context_tokens={least - 4}"
    with pytest.raises(ConfigError) as raised:
        checked(several, short)
    start = f"env_runners.max_context_tokens: {least - 4} tokens do not hold prompts of up to "
    end = f"fix: env_runners.max_context_tokens={least}, or env_runners.max_response_tokens=18"
    assert str(raised.value).startswith(start) and str(raised.value).endswith(end)
    assert checked(several, short, "env_runners.max_response_tokens=18").least <= least - 4
    with pytest.raises(ConfigError, match="^env_runners.max_context_tokens: 1024 tokens .* fix: env_[a-z._]*=[0-9]+$"):
        checked(several, "env_runners.max_context_tokens=9999", "env_runners.max_response_tokens=400")
