"""The rollouts of one step as a Parquet file, with the text of each token."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from algorithms.grpo.types import Group, Sample
from algorithms.rollout.conversation import conversation
from algorithms.rollout.types import Prompt, Rollout
from algorithms.utils.files import write_parquet

# What a decoder puts where bytes are no character, or not yet one.
_NO_CHARACTER = "\ufffd"
# A character has four bytes at most; a run of tokens that end within one character and begin within another is longer.
_LONGEST_RUN = 8


class TokenPieces:
    """Cuts a response's text at its tokens; caches the piece of every token.

    Args:
        tokenizer: Hugging Face's, of the policy.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Some decoders swallow the space in front of a text: each token is decoded behind another one.
        self._before = list(tokenizer.encode("a", add_special_tokens=False)[-1:])
        self._cut = 0
        self._cut = len(self._decode([]))
        self._known: dict[int, str] = {}

    def cut(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return one piece per token, control tokens included.

        A character whose bytes lie in several tokens is the last one's piece; the others' are empty.
        """
        pieces: list[str] = []
        incomplete: list[int] = []
        for token in tokens:
            piece = self._piece(token)
            if incomplete or _NO_CHARACTER in piece:
                incomplete.append(token)
                piece = self._decode(incomplete)
                if piece.endswith(_NO_CHARACTER) and len(incomplete) < _LONGEST_RUN:
                    piece = ""
                else:
                    incomplete = []
            pieces.append(piece)
        if incomplete:
            pieces[-1] = self._decode(incomplete)
        return tuple(pieces)

    def _piece(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._decode([token])
        return self._known[token]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            [*self._before, *tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text[self._cut :]


SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("uid", pa.string()),
        ("group", pa.int32()),
        ("context", pa.dictionary(pa.int32(), pa.string())),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("reward", pa.float32()),
        ("advantage", pa.float32()),
        ("correct", pa.bool_()),
        ("truncated", pa.bool_()),
        ("verdict", pa.dictionary(pa.int32(), pa.string())),
        ("tokens", pa.int32()),
        ("replayed", pa.bool_()),
        ("outcome_reward", pa.float32()),
        ("ranking_reward", pa.float32()),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("turn_lengths", pa.list_(pa.int32())),
        ("turn_starts", pa.list_(pa.int32())),
        ("turn_rewards", pa.list_(pa.float32())),
        ("turn_feedback", pa.list_(pa.string())),
        ("turn_correct", pa.list_(pa.bool_())),
        ("turn_states", pa.list_(pa.string())),
        ("policy_versions", pa.list_(pa.int32())),
        ("policy_tokens", pa.list_(pa.int32())),
        ("baseline", pa.string()),
        ("answer", pa.dictionary(pa.int32(), pa.string())),
        ("pieces", pa.list_(pa.string())),
        # Half precision has three digits, and these are most of a file.
        ("logprobs", pa.list_(pa.float16())),
        ("entropies", pa.list_(pa.float16())),
        ("sampling_logprobs", pa.list_(pa.float16())),
        ("advantages", pa.list_(pa.float16())),
    ]
)


@dataclass(frozen=True)
class TokenData:
    """The data of each token that the policy wrote, over all its turns.

    Args:
        pieces: the text that each token stands for; joined, they are what the policy wrote.
        logprobs: [L], of the policy at the step's start, or those that a replayed sample was stored with.
        entropies: [L] in nats; None where no forward pass computed them.
        sampling_logprobs: [L], the engine's own; None of a replayed sample.
        advantages: [L]; None where all tokens have the response's.
    """

    pieces: tuple[str, ...]
    logprobs: np.ndarray
    entropies: np.ndarray | None = None
    sampling_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None


_BY_TOKEN = tuple(each.name for each in fields(TokenData))


@dataclass(frozen=True)
class RolloutRow:
    """One sample of a group as it entered the update.

    Args:
        step: training step, from 1.
        group: index of its group in the step.
        context: of the prompt: `plain`, `reflection`, or the name that a mechanism gave it.
        reward: what the advantage was computed from.
        advantage: the mean over the tokens.
        verdict: the grader's reason.
        tokens: how many tokens the policy wrote.
        replayed: retrieved from the history, not sampled by this step's policy.
        outcome_reward: correctness after shaping, before any ranking.
        ranking_reward: what a mechanism such as SERR paid in the outcome's place; None: nothing.
        turns: `role` and `content` of the turns before the last response; empty where only `prompt` is known.
        turn_lengths: tokens that the policy wrote in each of its turns.
        turn_starts: where each of them begins among all tokens of the conversation, the prompt's included.
        turn_rewards: what the environment paid for each.
        turn_feedback: what it answered to each; empty text where it said nothing.
        turn_correct: whether each was verified as correct.
        turn_states: the state that each answers; empty text where the environment names none.
        policy_versions: of the weights that sampled its tokens, in the tokens' order; empty for a replayed one.
        policy_tokens: how many tokens each of them sampled.
        baseline: the groups of the step with this name were normalized together; None: the group alone.
        answer: the reference answer; empty: the query has none; None: unknown.
        token_data: None where it was not stored.
    """

    step: int
    uid: str
    group: int
    context: str
    prompt: str
    response: str
    reward: float
    advantage: float
    correct: bool
    truncated: bool
    verdict: str
    tokens: int
    replayed: bool
    outcome_reward: float | None = None
    ranking_reward: float | None = None
    turns: tuple[dict[str, str], ...] = ()
    turn_lengths: tuple[int, ...] = ()
    turn_starts: tuple[int, ...] = ()
    turn_rewards: tuple[float, ...] = ()
    turn_feedback: tuple[str, ...] = ()
    turn_correct: tuple[bool, ...] = ()
    turn_states: tuple[str, ...] = ()
    policy_versions: tuple[int, ...] = ()
    policy_tokens: tuple[int, ...] = ()
    baseline: str | None = None
    answer: str | None = None
    token_data: TokenData | None = field(default=None, compare=False)


_LISTS = (
    *("turns", "turn_lengths", "turn_starts", "turn_rewards", "turn_feedback", "turn_correct", "turn_states"),
    *("policy_versions", "policy_tokens"),
)


def write_rollouts(path: Path, rows: Iterable[RolloutRow]) -> None:
    """Write the rows as they arrive, zstd-compressed, in place of any file of that name.

    Text that is not valid Unicode (a lone surrogate) gets `?` in its place.
    """
    write_parquet(path, map(_record, rows), SCHEMA)


def read_rollouts(path: Path, groups: Collection[int] | None = None) -> list[RolloutRow]:
    """Read the rows of `write_rollouts`, in its order.

    Args:
        path: the file.
        groups: only these.

    Raises:
        OSError: there is no such file, or a page of it is not what was written.
        pyarrow.ArrowException: it is no Parquet file, or a part of one.
    """
    chosen = None if groups is None else pc.field("group").isin(list(groups))
    table = pq.read_table(path, schema=SCHEMA, filters=chosen, page_checksum_verification=True)
    return [_row(record) for record in table.to_pylist()]


def read_group_lengths(path: Path) -> dict[int, list[int]]:
    """Read only the lengths in tokens of each group's responses. Raises as `read_rollouts`."""
    table = pq.read_table(path, columns=["group", "tokens"], page_checksum_verification=True)
    lengths: dict[int, list[int]] = {}
    for group, tokens in zip(table["group"].to_pylist(), table["tokens"].to_pylist(), strict=True):
        lengths.setdefault(group, []).append(tokens)
    return lengths


def _record(row: RolloutRow) -> dict[str, Any]:
    record = {each.name: getattr(row, each.name) for each in fields(row) if each.name != "token_data"}
    if (data := row.token_data) is not None:
        values = {name: getattr(data, name) for name in _BY_TOKEN}
        record |= {
            name: each.astype(np.float16) if isinstance(each, np.ndarray) else each for name, each in values.items()
        }
    return record


def _row(record: dict[str, Any]) -> RolloutRow:
    by_token = {name: record.pop(name) for name in _BY_TOKEN}
    record |= {name: tuple(record[name] or ()) for name in _LISTS}
    return RolloutRow(**record, token_data=_token_data_of(by_token))


def _token_data_of(by_token: dict[str, list[Any] | None]) -> TokenData | None:
    pieces = by_token.pop("pieces")
    if pieces is None or by_token["logprobs"] is None:
        return None
    arrays = {name: None if each is None else np.array(each, np.float32) for name, each in by_token.items()}
    return TokenData(tuple(pieces), **arrays)  # type: ignore[arg-type]  # log-probs are there


def _unknown(prompt: Prompt) -> None:
    """Know no answer."""


def rollout_rows(
    step: int,
    groups: Sequence[Group],
    tokenizer: Any,
    pieces: TokenPieces | None = None,
    answer_to: Callable[[Prompt], str | None] = _unknown,
) -> Iterator[RolloutRow]:
    """Convert every sample of every group, replayed ones included; text is decoded one row at a time.

    Args:
        step: training step, from 1.
        groups: of the step.
        tokenizer: the policy's.
        pieces: cuts responses at their tokens; None leaves out what is known of each token.
        answer_to: returns the reference answer to a group's prompt.
    """
    return (
        RolloutRow(
            step=step,
            uid=sample.rollout.uid,
            group=index,
            context=str(sample.rollout.context),
            prompt=_prompt(sample.rollout, turns, tokenizer),
            response=turns[-1]["content"] if turns else "",
            reward=sample.training_reward,
            advantage=sample.advantage,
            correct=sample.rollout.correct,
            truncated=sample.rollout.truncated,
            verdict=sample.rollout.verdict,
            tokens=sample.rollout.response_length,
            replayed=sample.replayed,
            outcome_reward=sample.reward,
            ranking_reward=sample.shaped_reward,
            turns=turns[:-1],
            turn_lengths=sample.rollout.turn_lengths,
            turn_starts=tuple(turn.start for turn in sample.rollout.turns),
            turn_rewards=tuple(turn.reward for turn in sample.rollout.turns),
            turn_feedback=tuple(turn.feedback for turn in sample.rollout.turns),
            turn_correct=sample.rollout.turn_correct,
            turn_states=tuple(turn.state for turn in sample.rollout.turns),
            policy_versions=tuple(version for version, _ in spans),
            policy_tokens=tuple(tokens for _, tokens in spans),
            baseline=group.prompt.baseline,
            answer=answer,
            token_data=None if pieces is None else _token_data(sample, pieces),
        )
        for index, group in enumerate(groups)
        for answer in [answer_to(group.prompt)]
        for sample in group.samples
        for turns in [conversation(sample.rollout, tokenizer)]
        for spans in [() if sample.replayed else sample.rollout.version_spans]
    )


def sample_conversations(groups: Sequence[Group], count: int, tokenizer: Any) -> list[Rollout]:
    """Return the first fresh rollout of a few groups with all text in it, reflections first: they are rarer."""
    ordered = sorted(groups, key=lambda group: group.prompt.attempt is None)
    rollouts = [group.fresh[0].rollout for group in ordered if group.fresh][:count]
    return [replace(rollout, messages=conversation(rollout, tokenizer)) for rollout in rollouts]


def _prompt(rollout: Rollout, turns: Sequence[dict[str, str]], tokenizer: Any) -> str:
    """Everything before the last response; of a replayed sample, the prompt that it was stored with."""
    if len(turns) > 1:
        return "\n\n".join(turn["content"] for turn in turns[:-1])
    return str(tokenizer.decode(rollout.tokens[: rollout.prompt_length].tolist(), skip_special_tokens=True))


def _token_data(sample: Sample, pieces: TokenPieces) -> TokenData:
    rollout, advantages = sample.rollout, np.asarray(sample.advantages)
    return TokenData(
        pieces=pieces.cut(rollout.response_tokens.tolist()),
        logprobs=rollout.sampling_logprobs if sample.old_logprobs is None else sample.old_logprobs,
        entropies=sample.entropies,
        sampling_logprobs=None if sample.replayed else rollout.sampling_logprobs,
        advantages=advantages if advantages.size and np.ptp(advantages) else None,
    )
