"""The rows of a supervised start: the tokens of a rollout's prompt, and those of a correct solution behind it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.evaluation.sampling import held_out_sample
from algorithms.finetuning.config import SFTConfig
from algorithms.methods.prefixes import encode_text
from algorithms.models.tokenizer import chat_format
from algorithms.preflight.environments import check_environment_id
from algorithms.rollout.prompt_preview import PromptRenderer
from algorithms.rollout.types import Prompt
from r3env import chat
from r3env.core import Query, Reason, VerifiableEnv
from r3env.data.references import after_hashes, worked_steps
from r3env.data.sources import DataError, MissingColumnError, parse_source
from r3env.data.templates import template
from r3env.registry import constructor_parameters, make_env

# The name in `Query.info`, and of the column where none is named.
SOLUTION = "solution"
LARGEST_SHARE_HELD_OUT = 10  # one row in ten


@dataclass(frozen=True)
class Row:
    """One query with its solution, as tokens.

    Args:
        uid: of the query.
        prompt: int32 [P], what a rollout of the query begins with.
        response: int32 [R], the solution and the token that ends the policy's turn.
    """

    uid: str
    prompt: np.ndarray
    response: np.ndarray


@dataclass
class Rows:
    """The rows to train on, those to measure the loss on, and how many queries gave none, by the reason."""

    train: list[Row] = field(default_factory=list)
    held_out: list[Row] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def described(self) -> str:
        """Return the counts in a line."""
        mean = np.mean([len(row.response) for row in self.train])
        parts = [f"solutions: {len(self.train):,} to train on, of {mean:.0f} tokens on average"]
        parts += [f"{len(self.held_out):,} set aside"] if self.held_out else []
        parts += [f"left out: {count:,} {reason}" for reason, count in self.left_out.items()]
        return "; ".join(parts)


def make_environment(config: SFTConfig) -> VerifiableEnv:
    """Make the training environment, with the solution of each query in its `info`.

    Raises:
        ConfigError: the data have no such column.
    """
    settings = config.environment_settings
    check_environment_id(settings.id)
    arguments = settings.constructor_arguments()
    if "columns" in constructor_parameters(settings.id):
        given = arguments.get("columns", {})
        column = config.sft_settings.solution or given.get(SOLUTION) or _column_of(arguments)
        arguments["columns"] = {**given, SOLUTION: column}
    elif config.sft_settings.solution:
        raise ConfigError(
            f"sft.solution: {settings.id} takes no columns; fix: sft.solution=null, and solutions in "
            f"Query.info[{SOLUTION!r}]"
        )
    try:
        environment = make_env(settings.id, arguments)
        len(environment.queries)  # reads the data
    except MissingColumnError as error:
        column = arguments["columns"][SOLUTION]
        if error.column != column:
            raise ConfigError(f"environment.data: {error}") from error
        what = " ".join(str(error).split()).partition("; map it with")[0]
        raise ConfigError(f"sft.solution: {what}; name the one with worked solutions: sft.solution=NAME") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"environment.data: {error}") from error
    return environment


def _column_of(arguments: Mapping[str, Any]) -> str:
    """Return the column of a preset's solutions; else the usual name."""
    try:
        source = parse_source(str(arguments.get("data")), preset=arguments.get("preset"))
    except DataError:  # an environment's own name for its problems
        return SOLUTION
    return (source.preset.solution if source.preset else None) or SOLUTION


def read_rows(config: SFTConfig, environment: VerifiableEnv, tokenizer: Any, context: int | None) -> Rows:
    """Return the rows of all queries whose solution is correct and short enough.

    Args:
        config: the configuration.
        environment: of `make_environment`.
        tokenizer: of the policy, with its chat template.
        context: tokens that the model can hold; None: no bound.

    Raises:
        ConfigError: no row is left.
    """
    settings = config.sft_settings
    limit = settings.max_tokens or config.env_runners_settings.max_response_tokens
    renderer = PromptRenderer.of(config, tokenizer, environment, context)
    end = _end_token(config, tokenizer)
    found: list[Row] = []
    templates: dict[str, str | None] = {}
    rows = Rows()

    def leave_out(reason: str) -> None:
        rows.left_out[reason] = rows.left_out.get(reason, 0) + 1

    for uid in environment.uids:
        query = environment.query(uid)
        cell = query.info.get(SOLUTION)
        if not isinstance(cell, str) or not cell.strip():
            leave_out("without a solution")
            continue
        text = correct_solution(environment, query, cell)
        if text is None:
            leave_out("whose solution is graded as incorrect")
            continue
        response = np.append(encode_text(tokenizer, text), np.int32(end))
        if len(response) > limit:
            leave_out(f"longer than {limit:,} tokens")
            continue
        prompt = renderer.render(Prompt(uid), len(response))
        if prompt is None:
            leave_out("whose prompt leaves no room in the model's context")
            continue
        found.append(Row(uid, prompt, response))
        templates[uid] = template(query.problem)
    if not found:
        why = ", ".join(f"{count:,} {reason}" for reason, count in rows.left_out.items())
        fix = "name the column of worked solutions"
        raise ConfigError(f"sft.solution: no query can be trained on ({why}); fix: {fix}, sft.solution=NAME")
    return _divided(rows, found, templates, settings.held_out, settings.rows)


def _divided(
    rows: Rows, found: Sequence[Row], templates: Mapping[str, str | None], held_out: int, limit: int | None
) -> Rows:
    """Set rows aside, those that no other differs from in its numbers alone if there are enough of them."""
    by_uid = {row.uid: row for row in found}
    aside = min(held_out, len(found) // LARGEST_SHARE_HELD_OUT)
    rows_of = Counter(templates.values())
    unique = [uid for uid in by_uid if templates[uid] is None or rows_of[templates[uid]] == 1]
    chosen = held_out_sample(unique if len(unique) >= aside else list(by_uid), aside) if aside else []
    rows.held_out = [by_uid.pop(uid) for uid in chosen]
    rows.train = [by_uid[uid] for uid in held_out_sample(list(by_uid), limit)]
    return rows


def correct_solution(environment: VerifiableEnv, query: Query, cell: str) -> str | None:
    """Return a solution as the response that the environment grades as correct; None where it is not.

    GSM8K's marks are taken out (`worked_steps`); a solution without a final answer gets the reference answer behind it.
    """
    text = worked_steps(cell)
    verdict = environment.verify(query, text)
    if verdict.correct:
        return text
    if not query.answer or (verdict.reason is not Reason.NO_ANSWER and after_hashes(cell) is None):
        return None
    text = f"{text}\n{environment.reference_response(query)}"
    return text if environment.verify(query, text).correct else None


def _end_token(config: SFTConfig, tokenizer: Any) -> int:
    """Return the token that ends the policy's turn: the template's, else the tokenizer's."""
    found = chat.end_of_turn(tokenizer, chat_format(config))
    end = tokenizer.eos_token_id if found is None else found
    if end is None:
        raise ConfigError("rl_module.model: its tokenizer has no end token; fix: set its eos_token, and save it again")
    return int(end)
