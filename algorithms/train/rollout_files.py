"""Rollouts of one step as a Parquet file, for reading afterwards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from algorithms.grpo.types import Group, Sample
from algorithms.rollout.types import Rollout
from algorithms.utils.parquet_files import write_parquet

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
        ("pieces", pa.list_(pa.string())),
        # Half precision has three digits, and these are most of a file.
        ("logprobs", pa.list_(pa.float16())),
        ("entropies", pa.list_(pa.float16())),
    ]
)


class TokenPieces:
    """Cuts a response's text at its tokens; remembers the piece of every token that it has met.

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

    def of(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """One piece a token, control tokens included.

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


@dataclass(frozen=True)
class TokenData:
    """What is known of each token that the policy wrote, over all its turns.

    Args:
        pieces: the text that each token stands for; joined, they are what the policy wrote.
        logprobs: [L], the behavior policy's: the trainer's own, or those that a replayed sample was stored with.
        entropies: [L] in nats; None where no forward pass computed them.
    """

    pieces: tuple[str, ...]
    logprobs: np.ndarray
    entropies: np.ndarray | None


@dataclass(frozen=True)
class RolloutRow:
    """One sample of a group as it entered the update.

    Args:
        step: training step, from 1.
        group: index of its group in the step.
        context: `plain` or `reflection`.
        reward: what the advantage was computed from.
        verdict: the grader's reason.
        tokens: how many tokens the policy wrote.
        replayed: it came from the history, not from this step's policy.
        outcome_reward: correctness after shaping, before any ranking.
        ranking_reward: SERR's value, which trained in the outcome's place; None where nothing was ranked.
        turns: `role` and `content` of the turns before the last response; empty where only `prompt` is known.
        turn_lengths: tokens that the policy wrote in each of its turns.
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
    token_data: TokenData | None = field(default=None, compare=False)


def write_rollouts(path: Path, rows: Sequence[RolloutRow]) -> None:
    """Write the rows, zstd-compressed; a file of that name is replaced whole.

    Text that is not valid Unicode (a lone surrogate) gets `?` in its place.
    """
    write_parquet(path, map(_record, rows), SCHEMA)


def read_rollouts(path: Path, groups: Collection[int] | None = None) -> list[RolloutRow]:
    """Read what `write_rollouts` wrote, in its order; columns that an older version did not write are empty.

    Args:
        path: the file.
        groups: only these.

    Raises:
        OSError: there is no such file.
        pyarrow.ArrowException: it is no Parquet file, or a part of one.
    """
    chosen = None if groups is None else pc.field("group").isin(list(groups))
    return [_row(record) for record in pq.read_table(path, schema=SCHEMA, filters=chosen).to_pylist()]


def read_group_lengths(path: Path) -> dict[int, list[int]]:
    """The lengths in tokens of each group's responses; reads nothing else. Raises as `read_rollouts`."""
    table = pq.read_table(path, columns=["group", "tokens"])
    lengths: dict[int, list[int]] = {}
    for group, tokens in zip(table["group"].to_pylist(), table["tokens"].to_pylist(), strict=True):
        lengths.setdefault(group, []).append(tokens)
    return lengths


def _record(row: RolloutRow) -> dict[str, Any]:
    record = {each.name: getattr(row, each.name) for each in fields(row) if each.name != "token_data"}
    if (data := row.token_data) is not None:
        record["pieces"] = data.pieces
        record["logprobs"] = data.logprobs.astype(np.float16)
        record["entropies"] = None if data.entropies is None else data.entropies.astype(np.float16)
    return record


def _row(record: dict[str, Any]) -> RolloutRow:
    pieces, logprobs, entropies = (record.pop(name) for name in ("pieces", "logprobs", "entropies"))
    data = None
    if pieces is not None and logprobs is not None:
        data = TokenData(
            tuple(pieces),
            np.array(logprobs, np.float32),
            None if entropies is None else np.array(entropies, np.float32),
        )
    record["turns"] = tuple(record["turns"] or ())
    record["turn_lengths"] = tuple(record["turn_lengths"] or ())
    return RolloutRow(**record, token_data=data)


def rollout_rows(
    step: int, groups: Sequence[Group], tokenizer: Any, pieces: TokenPieces | None = None
) -> list[RolloutRow]:
    """Every sample of every group, replayed ones included.

    Args:
        step: training step, from 1.
        groups: of the step.
        tokenizer: the policy's.
        pieces: cuts responses at their tokens; None leaves out what is known of each token.
    """
    return [
        RolloutRow(
            step=step,
            uid=sample.rollout.uid,
            group=index,
            context=str(sample.rollout.context),
            prompt=_prompt(sample.rollout, tokenizer),
            response=sample.rollout.messages[-1]["content"] if sample.rollout.messages else "",
            reward=sample.training_reward,
            advantage=sample.advantage,
            correct=sample.rollout.correct,
            truncated=sample.rollout.truncated,
            verdict=sample.rollout.verdict,
            tokens=sample.rollout.response_length,
            replayed=sample.replayed,
            outcome_reward=sample.reward,
            ranking_reward=sample.shaped_reward,
            turns=sample.rollout.messages[:-1],
            turn_lengths=_turn_lengths(sample.rollout.loss_mask),
            token_data=None if pieces is None else _token_data(sample, pieces),
        )
        for index, group in enumerate(groups)
        for sample in group.samples
    ]


def sample_conversations(groups: Sequence[Group], count: int) -> list[Rollout]:
    """The first fresh rollout of a few groups, reflections first: they are rarer."""
    ordered = sorted(groups, key=lambda group: group.prompt.attempt is None)
    return [group.samples[0].rollout for group in ordered[:count]]


def _prompt(rollout: Rollout, tokenizer: Any) -> str:
    """Everything before the last response; of a replayed sample, the prompt that it was stored with."""
    if len(rollout.messages) > 1:
        return "\n\n".join(message["content"] for message in rollout.messages[:-1])
    return str(tokenizer.decode(rollout.tokens[: rollout.prompt_length].tolist(), skip_special_tokens=True))


def _turn_lengths(loss_mask: np.ndarray) -> tuple[int, ...]:
    """Lengths of the runs of policy tokens."""
    edges = np.flatnonzero(np.diff(loss_mask.astype(np.int8), prepend=0, append=0))
    return tuple((edges[1::2] - edges[::2]).tolist())


def _token_data(sample: Sample, pieces: TokenPieces) -> TokenData:
    rollout, logprobs = sample.rollout, sample.old_logprobs
    return TokenData(
        pieces=pieces.of(rollout.response_tokens.tolist()),
        logprobs=rollout.sampling_logprobs if logprobs is None else logprobs,
        entropies=None if sample.entropies is None else sample.entropies,
    )


# What a decoder puts where bytes are no character, or not yet one.
_NO_CHARACTER = "\ufffd"
# A character has four bytes at most; tokens that end in the middle of one and begin in another can go on longer.
_LONGEST_RUN = 8
