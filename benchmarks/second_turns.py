r"""What makes a second turn worth its tokens: a policy's failed problems, asked again in four ways.

    python -m benchmarks.second_turns --model .venv/real/SmolLM2-135M-Instruct --config configs/laptop.yaml \
        --data development#seed=1,size=150

Each problem is answered once. Those that failed are asked again: bare, behind another problem's attempt, behind the
policy's own, and behind its own with the environment's feedback. If the last two are not ahead of the first two, a
second turn is worth no more than another try. The arguments are those of `python -m algorithms.evaluate`; `--samples`
is the number of answers to each second prompt.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from algorithms.config.consistency import check_second_tries
from algorithms.evaluate import parser
from algorithms.evaluation.config import validate_engine
from algorithms.evaluation.problems import make_environment, select_problems
from algorithms.evaluation.sampling import evaluation_sampling, make_truncator
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Attempt, Context, Prompt, Request, Rollout, Sampling, Split
from algorithms.rollout.workers import inference_workers
from algorithms.train.evaluated_run import resolve_config
from algorithms.utils.rng import RngStream, request_seeds
from algorithms.utils.statistics import in_points, paired_bootstrap

BARE = "asked again, bare"


def prompts(uids: Sequence[str], attempts: Sequence[Attempt]) -> dict[str, list[Prompt]]:
    """Return the second prompts by way; each problem's other attempt is the next problem's.

    Raises:
        ValueError: fewer than two problems.
    """
    if len(uids) < 2:
        raise ValueError(f"{len(uids)} problems failed: at least two must, to quote another's attempt")
    others = [*attempts[1:], attempts[0]]
    silent = [replace(attempt, feedback="") for attempt in attempts]
    swapped = [
        replace(own, response_tokens=other.response_tokens, text=other.text)
        for own, other in zip(silent, others, strict=True)
    ]
    ways = {
        "behind another problem's attempt": swapped,
        "behind its own attempt": silent,
        "behind its own attempt, with feedback": attempts,
    }
    behind = {
        way: [Prompt(uid, Context.REFLECTION, attempt) for uid, attempt in zip(uids, quoted, strict=True)]
        for way, quoted in ways.items()
    }
    return {BARE: [Prompt(uid) for uid in uids], **behind}


def requests(prompts: Sequence[Prompt], samples: int, sampling: Sampling, seed: int, occasion: int) -> list[Request]:
    """Make `samples` requests for each prompt, in a row; seeds differ between occasions."""
    seeds = request_seeds(seed, 0, RngStream.EVALUATION, len(prompts) * samples, occasion)
    return [
        Request(number, prompts[number // samples], number // samples, drawn, sampling, Split.EVALUATION)
        for number, drawn in enumerate(seeds)
    ]


def shares(rollouts: Sequence[Rollout], samples: int) -> dict[str, float]:
    """Return each problem's share of correct answers, of the requests of `requests`.

    Raises:
        ValueError: nothing is known of an answer.
    """
    if errors := [rollout.error for rollout in rollouts if rollout.error]:
        raise ValueError(f"{len(errors)} of {len(rollouts)} answers failed: {errors[0]}")
    correct = np.array([rollout.correct for rollout in rollouts], float).reshape(-1, samples)
    return dict(zip([rollout.uid for rollout in rollouts[::samples]], correct.mean(axis=1).tolist(), strict=True))


def table(found: dict[str, dict[str, float]]) -> str:
    """Tabulate pass@1 of each way, and its difference to the bare question with its 95 % interval over problems."""
    lines = ["| second prompt | pass@1 | minus bare [95 %] |", "|---|---|---|"]
    for way, own in found.items():
        change = None if way == BARE else paired_bootstrap(found[BARE], own)
        points = [f"{in_points(value):+.1f}" for value in (change.mean, change.low, change.high)] if change else []
        gap = f"{points[0]} [{points[1]}, {points[2]}]" if points else ""
        lines.append(f"| {way} | {in_points(float(np.mean([*own.values()]))):.1f} % | {gap} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Answer, ask again, print the table."""
    arguments = parser().parse_intermixed_args(argv)
    samples, arguments.samples, arguments.reflection = arguments.samples or 4, 1, True
    config, seed = resolve_config(arguments)
    environment, module = make_environment(config), config.rl_module_settings
    check_second_tries(config.evaluation_settings, environment.max_turns)
    uids = select_problems(environment, config)
    validate_engine(config, environment, uids)
    sampling = evaluation_sampling(config.evaluation_settings, Sampling.of(config.env_runners_settings))
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    truncator = make_truncator(config, tokenizer, environment, context_length(module))
    assert truncator is not None  # as second tries are on
    with inference_workers(config) as workers:
        first = workers.rollout(requests([*map(Prompt, uids)], 1, sampling, seed, 0))
        failed = [rollout for rollout in first if not rollout.correct and rollout.error is None]
        print(f"{len(failed)} of {len(first)} problems failed", file=sys.stderr)
        attempts = [
            truncator.truncate(truncator.attempt(one.tokens, one.loss_mask, last_text(one), one.feedback))
            for one in failed
        ]
        found = {
            way: shares(workers.rollout(requests(asked, samples, sampling, seed, occasion)), samples)
            for occasion, (way, asked) in enumerate(prompts([one.uid for one in failed], attempts).items(), 1)
        }
    print(table(found))


if __name__ == "__main__":
    main()
