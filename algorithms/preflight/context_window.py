"""Count the tokens of a configuration's longest episodes, and check that the model has room for them."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError, shown
from algorithms.models.names import ModelFacts, resolve_model
from algorithms.preflight.environments import EnvironmentFacts, Opening, opening_text
from algorithms.rollout.attempts import engine_context, named_length
from algorithms.rollout.chunks import longest_row
from algorithms.rollout.summaries import INSTRUCTION

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# What an environment may write between two answers, if it writes no more than most do.
FEEDBACK_TOKENS = 512
# The engine's cache is dealt out in blocks of this many tokens.
_BLOCK = 16
# Prompts that are tokenized at a time, and those whose template is rendered too.
_BATCH, _RENDERED = 256, 8


@dataclass(frozen=True)
class ContextUse:
    """Lengths in tokens, and which tokens these are.

    Args:
        prompt: the longest first prompt; 0 when there is none at hand to measure.
        plain: the longest episode of one turn.
        longest: the longest episode, with the further turns that the configuration allows.
        row: what the learner computes of an episode of one turn at most: more, where it has several contexts.
        largest_token: the largest id that needs an embedding, of those measured and the least that ends a response;
            -1: none was.
        least: what a context needs that begins with a summary and has a turn before the next; 0: none is summarized.
    """

    prompt: int
    plain: int
    longest: int
    row: int
    largest_token: int = -1
    least: int = 0


def context_use(config: "BaseConfig", environment: EnvironmentFacts, context: int | None = None) -> ContextUse:
    """Measure with the model's tokenizer.

    Raises:
        ConfigError: the tokenizer cannot be loaded, its chat template cannot continue a conversation, or nothing ends
            a response.
    """
    runners, quoted = config.env_runners_settings, config.quoted_tokens()
    response = runners.context_response
    turns = environment.max_turns
    second_tries = config.evaluation_settings.reflection
    several = turns > 1 or second_tries or quoted > 0
    limit = runners.max_context_tokens if turns > 1 else None
    later = environment.guidance if several else None, None if limit is None else INSTRUCTION["content"]
    prompt, (guidance, asking), largest = _measured(config, environment, later)
    # What an environment writes between two answers is not known before it does.
    written = turns * response + (turns - 1) * max(guidance, FEEDBACK_TOKENS)
    quoted = max(quoted, response if second_tries else 0)
    longest = prompt + written + (quoted + guidance if quoted else 0)
    row = longest_row(prompt, runners.max_response_tokens, response)
    use = ContextUse(prompt=prompt, plain=prompt + response, longest=longest, row=row, largest_token=largest)
    if limit is None:
        return use
    held, contexts = engine_context(config, context) or limit, min(turns, runners.max_summaries + 1)
    longest = min(limit, held, longest + response + asking)
    return replace(use, longest=longest, row=contexts * longest, least=prompt + 3 * response + guidance + asking)


def engine_length(config: "BaseConfig", context: int | None, use: ContextUse) -> int | None:
    """Return the tokens that a vLLM engine's longest sequence may have.

    It is what the settings name, or else what prompts, responses, further turns and quoted attempts take, within the
    model's context: vLLM reserves cache for one such sequence at least, and runs one to warm up.

    Args:
        config: the configuration.
        context: of the model; None if unknown.
        use: the tokens that the longest episodes take.

    Returns:
        The length; None where no prompt was at hand to measure: the model's own context.
    """
    if (named := named_length(config)) is not None:
        return named
    if not use.prompt:
        return None
    room = -(-use.longest // _BLOCK) * _BLOCK
    return min(room, context or room)


def validate_context(config: "BaseConfig", model: ModelFacts, use: ContextUse) -> None:
    """Check that a prompt, its response and a second attempt fit, and that the model knows their tokens.

    Raises:
        ConfigError: they are longer than the model's context, or than what its positions are the same up to, or a token
            has no embedding.
    """
    if model.vocabulary is not None and use.largest_token >= model.vocabulary:
        raise ConfigError(
            f"rl_module.model: {shown(model.name)}: its tokenizer gives token {use.largest_token}, and the model has "
            f"embeddings for {model.vocabulary}; fix: model.resize_token_embeddings(len(tokenizer)) of transformers, "
            "then save the model there again"
        )
    longest = max(use.longest, named_length(config) or 0)
    if config.TRAINS and model.short_context is not None and longest > model.short_context:
        raise ConfigError(
            f"rl_module.model: {shown(model.name)}: a sequence of more than {model.short_context} tokens changes the "
            f"positions of its whole batch (longrope), which engine and learner cut otherwise, and {longest} tokens "
            "may come; fix: a smaller env_runners.max_response_tokens, env_runners.max_model_len or "
            "environment.max_turns"
        )
    if model.context is None or use.plain <= model.context:
        _room_for_second_tries(config, model, use)
        _room_for_summaries(config, model, use)
        return
    runners, room = config.env_runners_settings, model.context - use.prompt
    response, chunks = runners.context_response, runners.response_chunks
    most, of_what = room * (chunks + 1) // 2, "" if chunks == 1 else " in a chunk"
    fix = f"env_runners.max_response_tokens={most}" if room > 0 else "a model with a longer context"
    raise ConfigError(
        f"env_runners.max_response_tokens: {response}{of_what} and prompts of up to {use.prompt} tokens are more than "
        f"the {model.context} tokens of {model.name}; fix: {fix}"
    )


def _room_for_second_tries(config: "BaseConfig", model: ModelFacts, use: ContextUse) -> None:
    """Check that an evaluation's second answer is as long as it may be, if nothing of the first were quoted."""
    context, response = engine_context(config, model.context), config.env_runners_settings.context_response
    least = use.longest - response
    # Where not even a first answer fits, `validate_engine_context` says so.
    if config.evaluation_settings.reflection and context is not None and use.plain <= context < least:
        raise ConfigError(
            f"env_runners.max_response_tokens: {response}, the turn that asks for a second attempt and prompts of up "
            f"to {use.prompt} tokens are more than the {context} tokens of the model; fix: "
            f"env_runners.max_response_tokens={max(1, response - (least - context))}"
        )


def _room_for_summaries(config: "BaseConfig", model: ModelFacts, use: ContextUse) -> None:
    """Check that a context which begins with a summary has room for a turn, and for the next summary behind that."""
    response, limit = config.env_runners_settings.max_response_tokens, config.env_runners_settings.max_context_tokens
    held = engine_context(config, model.context) or use.least
    room = min(limit or held, held)
    if use.least <= room:
        return
    most = response - -(-(use.least - room) // 3)
    fixes = [f"env_runners.max_context_tokens={use.least}"] if use.least <= held else []
    fixes += [f"env_runners.max_response_tokens={most}"] if most > 0 else []
    raise ConfigError(
        f"env_runners.max_context_tokens: {room} tokens do not hold prompts of up to {use.prompt} tokens, a summary, a "
        f"response and the next summary, of up to {response} tokens each; fix: "
        f"{', or '.join(fixes) or 'a model with a longer context'}"
    )


def _measured(
    config: "BaseConfig", environment: EnvironmentFacts, later: Sequence[str | None]
) -> tuple[int, list[int], int]:
    """Tokens of the longest prompt, of each later user turn, 0 for none; the largest id."""
    if not environment.prompts:
        return 0, [0] * len(later), -1
    from algorithms.models.tokenizer import chat_format, load_tokenizer, stop_token_ids
    from algorithms.preflight.chat_template import check_chat, check_tools
    from r3env import chat

    module = config.rl_module_settings
    model = resolve_model(module.model)
    try:
        tokenizer = load_tokenizer(model, module.revision, module.trust_remote_code)
        check_chat(config, tokenizer)
        form = replace(chat_format(config), tools=environment.tools)
        check_tools(config, tokenizer, form)
        longest = _most_tokens(tokenizer, environment.prompts)
        contents = [[{"role": "user", "content": one}] if isinstance(one, str) else one for one in longest]
        prompts = [chat.first_turn(tokenizer, content, form) for content in contents]
        turns = [[] if text is None else chat.second_turn(tokenizer, text, form) for text in later]
        stops = stop_token_ids(tokenizer, model, module.revision)
    except ConfigError:
        raise
    except Exception as error:  # a tokenizer and its template are files that somebody else wrote
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"rl_module.model: {shown(module.model)}: its tokenizer: {reason}") from error
    largest = max(itertools.chain(*prompts, *turns, [min(stops)]))  # further stops are never sampled: harmless
    return max(map(len, prompts)), [*map(len, turns)], largest


def _most_tokens(tokenizer: Any, prompts: Sequence[Opening]) -> list[Opening]:
    """Return the prompts with the most tokens; they come with the most bytes first, and no token is shorter."""
    measured: list[tuple[int, Opening]] = []
    for start in range(0, len(prompts), _BATCH):
        batch = prompts[start : start + _BATCH]
        texts = [opening_text(prompt) for prompt in batch]
        least = measured[-1][0] if len(measured) == _RENDERED else 0
        if len(texts[0].encode()) <= least:
            break
        lengths = map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])
        together = [*measured, *zip(lengths, batch, strict=True)]
        measured = sorted(together, key=lambda pair: pair[0], reverse=True)[:_RENDERED]
    return [prompt for _, prompt in measured]


HOTTEST = 2.0


def check_temperatures(config: "BaseConfig") -> None:
    """Check that vLLM can sample at the configured temperatures.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    if runners.engine != "vllm":
        return
    asked = {"env_runners.temperature": runners.temperature, "evaluation.temperature": evaluation.temperature}
    for key, temperature in asked.items():
        if temperature is not None and temperature > HOTTEST:
            raise ConfigError(
                f"{key}: vLLM samples at temperatures up to {HOTTEST:g}, not {temperature:g}; fix: {key}={HOTTEST:g}"
            )


def validate_engine_context(config: "BaseConfig", use: ContextUse) -> None:
    """Check that a prompt and its response fit into the context that vLLM is started with.

    Raises:
        ConfigError: they are longer than `max_model_len`, so that every long response would be cut off early.
    """
    runners, length = config.env_runners_settings, named_length(config)
    if length is not None and length < use.plain:
        key = "env_runners.vllm.max_model_len" if "max_model_len" in runners.vllm else "env_runners.max_model_len"
        raise ConfigError(
            f"{key}: {length} tokens do not hold prompts of up to {use.prompt} tokens and "
            f"responses of {runners.context_response}; fix: {key}=null, or {use.longest}"
        )
