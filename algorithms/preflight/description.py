"""Describe a configuration for `--check`: what runs where, what that takes, the data, the first prompt."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from algorithms.config.placement import WAYS, engine_in_int8, placement, sends_adapter, transfer_kind
from algorithms.models.names import ModelFacts
from algorithms.preflight.activations import activation_bytes, microbatch_tokens
from algorithms.preflight.chat_template import prompt_lines
from algorithms.preflight.context_window import FEEDBACK_TOKENS, ContextUse
from algorithms.preflight.environments import EnvironmentFacts
from algorithms.preflight.fitting import NOT_ENOUGH, gpu_shortage, needed_gpu_bytes
from algorithms.preflight.gpus import other_card
from algorithms.preflight.memory import (
    LIBRARIES_BYTES,
    VLLM_BYTES,
    engine_bytes,
    gib,
    gpu_memory,
    learner_bytes,
    learner_peak,
    least_gpu_bytes,
    responses_at_once,
    room_lines,
    sequence_bytes,
)
from algorithms.preflight.ray_session import needs_ray, too_long
from algorithms.preflight.resources import (
    USE_A_GPU,
    Resources,
    available,
    gpu_problem,
    installation_lines,
    leaves_gpus_idle,
    reserved,
    vllm_is_installed,
)
from algorithms.preflight.trial import DOUBTFUL
from algorithms.utils.machine import memory_bytes
from r3env.printable import printable

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig
    from algorithms.config.sections import RunSettings

_NOT_CHECKED = "not checked: "
NOT_CACHED = f"{_NOT_CHECKED}not in the local cache, and the Hub was not reached"
_NOT_FETCHED = f"{_NOT_CHECKED}a data set on the Hub"
# So many parameters that bytes of a shard are not rounded up to whole ones.
_MILLION = ModelFacts("", "", parameters=10**6, layers=0, kv_heads=0, head_size=0, context=None)
_WIDTH = 16
_LESS_MEMORY = (
    f"{NOT_ENOUGH}; fix: rl_module.gradient_checkpointing=true, a smaller learners.token_budget, or fewer responses "
    "at a time (env_runners.max_num_seqs)"
)


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Args:
        lines: for people.
        enough: whether this machine or the cluster has the GPUs, CPU slots and memory, as far as is known.
    """

    lines: tuple[str, ...]
    enough: bool


class Line(NamedTuple):
    """A line of a report: its name, its text, and whether there is enough of what it is about."""

    name: str
    text: str
    enough: bool


def describe(
    config: "BaseConfig",
    run_settings: "RunSettings",
    environment: EnvironmentFacts,
    model: ModelFacts | None,
    use: ContextUse | None,
) -> CheckResult:
    """Describe what a configuration would start.

    Args:
        config: of the run.
        run_settings: likewise.
        environment: its queries.
        model: None where it is not at hand.
        use: of the model's context; None likewise.
    """
    rows = [*_run_lines(config, run_settings), *_place_lines(config), *_gpu_lines(config, model, use)]
    rows += _model_lines(config, model, use, responses_at_once(config, environment.held_out))
    rows += _data_lines(config, environment)
    if model is not None:
        rows += prompt_lines(config, environment.first_prompt, environment.tools)
    return to_result(rows)


def to_result(rows: Sequence[Line | tuple[str, str]]) -> CheckResult:
    """Lay out lines, and the verdict that follows from them."""
    lines = tuple(printable(f"{row[0]:<{_WIDTH}}{row[1]}".rstrip()) for row in (*rows, ("verdict", _verdict(rows))))
    return CheckResult(lines, all(row.enough for row in rows if isinstance(row, Line)))


def _verdict(rows: Sequence[Line | tuple[str, str]]) -> str:
    """Name the lines that say what is missing, and those of what was not checked."""
    missing = [row.name for row in rows if isinstance(row, Line) and not row.enough]
    unchecked = [row[0] for row in rows if _NOT_CHECKED in row[1]]
    doubtful = [row[0] for row in rows if DOUBTFUL in row[1]]
    text = f"NOT ENOUGH here: {', '.join(missing)}" if missing else "nothing is missing here"
    text += f"; doubtful: {', '.join(doubtful)}" if doubtful else ""
    return f"{text}; not checked: {', '.join(unchecked)}" if unchecked else text


def _run_lines(config: "BaseConfig", run: "RunSettings") -> Iterator[tuple[str, str]]:
    mechanisms = config.enabled_mechanisms()
    yield (
        "algorithm",
        ": ".join(filter(None, [type(config).__name__[: -len("Config")], ", ".join(mechanisms)])),
    )
    yield from (("own method", text) for text in config.own_methods())
    every = f"every {run.checkpoint_every} steps and at the end" if run.checkpoint_every else "at the end"
    yield "run", f"{run.dir}/{run.name or 'NAME'}: {run.steps} steps, seed {run.seed}, checkpoint {every}"
    if run.stop:
        yield "stop", ", ".join(f"{key}: {limit}" for key, limit in run.stop.items())
    training = config.training_settings
    responses = training.queries_per_step * training.group_size
    yield (
        "step",
        f"{training.queries_per_step} prompt groups × {training.group_size} = {responses} responses, "
        f"{training.minibatches} optimizer step{'s' * (training.minibatches > 1)}"
        + f" in each of {training.passes} passes"
        * (training.passes > 1),
    )
    if more := config.extra_prompts():
        yield "", f"and up to {more} further groups, {more * training.group_size} responses"


def _place_lines(config: "BaseConfig") -> Iterator[Line | tuple[str, str]]:
    runners, learners = config.env_runners_settings, config.learners_settings
    at_home = [("engine", runners.num_env_runners), ("learner", learners.num_learners)]
    yield "driver", ", ".join(["training loop", *(part for part, actors in at_home if not actors)])
    dtype = f"{runners.dtype} and int8" if engine_in_int8(config) else runners.dtype
    engine = f"{runners.engine} engine in {dtype}, {runners.max_num_seqs} responses at a time"
    if runners.engine == "vllm" and not vllm_is_installed():
        engine += " (vLLM is not installed here)"
    each = (runners.num_cpus_per_env_runner, runners.num_gpus_per_env_runner)
    spares = f" and {_actors(runners.spares, *each)} spare" if runners.spares else ""
    yield "env runners", f"{_actors(runners.num_env_runners, *each)}{spares}: {engine}"
    if (rewards := runners.reward_actor).replicas:
        held, asked = ("environment", "calls") if rewards.environments else ("reward", "responses")
        at_once = f"{rewards.concurrency} {asked} at a time"
        yield f"{held} actors", f"{_actors(rewards.replicas, rewards.num_cpus, rewards.num_gpus)}: {at_once}"
    yield from _sampling_lines(config)
    work = f"computing in {config.rl_module_settings.dtype}, micro-batches of {learners.token_budget} tokens"
    each = (learners.num_cpus_per_learner, learners.num_gpus_per_learner)
    yield "learners", f"{_actors(learners.num_learners, *each)}: {work}"
    has, enough = _has(config, available())
    yield Line("resources", f"{reserved(config)} for actors; {has}", enough)
    if needs_ray(config) and not os.environ.get("RAY_ADDRESS") and (text := too_long()):
        yield "Ray's folder", text
    yield from itertools.starmap(Line, installation_lines(config))
    if problem := gpu_problem(config):
        yield Line("GPU", f"NOT USABLE: {problem}", False)


def _sampling_lines(config: "BaseConfig") -> Iterator[tuple[str, str]]:
    """Yield what ends a response beside the end tokens, and how an evaluation's distribution is truncated."""
    runners, evaluation = config.env_runners_settings, config.evaluation_settings
    tokens = [f"token {token}" for token in runners.stop_token_ids]
    stops = {"stops": [*map(repr, runners.stop), *tokens], "eval stops": list(map(repr, evaluation.stop or ()))}
    for name, ends in stops.items():
        if ends:
            yield name, f"responses end after {', '.join(ends)}"
    whole = {"top_p": 1, "top_k": 0, "min_p": 0}
    if kept := [f"{key} {value:g}" for key in whole if (value := getattr(evaluation, key)) != whole[key]]:
        yield "eval sampling", ", ".join(kept)


def _has(config: "BaseConfig", there: Resources | None) -> tuple[str, bool]:
    """Write what there is, and say whether it is enough."""
    if there is None:
        return "the cluster's resources are read when the run joins it", True
    needed, card, text = reserved(config), other_card(), f"{there.where} has {there}"
    if card:
        text = f"counted for cards of {gib(card.least_bytes)}, not for this machine's"
    # A Ray of this machine alone is started with as many CPU slots as the actors ask for.
    few_cpus = needed.cpus > there.cpus and there.where != "this machine"
    if few_cpus or needed.gpus > there.gpus:
        return f"{text}{NOT_ENOUGH}", False
    return f"{text}: NONE IS USED; fix: {USE_A_GPU}" if leaves_gpus_idle(config, there) else text, True


def _gpu_lines(
    config: "BaseConfig", model: ModelFacts | None, use: ContextUse | None = None
) -> Iterator[Line | tuple[str, str]]:
    """Yield how weights travel, who shares a GPU, and how large it must be."""
    way = WAYS[transfer_kind(config)] + ", the adapter alone" * sends_adapter(config)
    yield "placement", f"{placement(config)}; weights: {way}"
    if model is not None and (text := gpu_memory(config, model)):
        if (needed := needed_gpu_bytes(config, model, use)) > least_gpu_bytes(config, model):
            text += f", {gib(needed)} with them"
        small = gpu_shortage(config, model, use)
        yield Line("each GPU", f"{text}; {small}" if small else text, not small)


def _actors(count: int, cpus: float, gpus: float) -> str:
    return f"{count} × ({cpus:g} CPU, {gpus:g} GPU)" if count else "in the driver"


def _model_lines(
    config: "BaseConfig", model: ModelFacts | None, use: ContextUse | None, at_once: int
) -> Iterator[Line | tuple[str, str]]:
    if model is None or use is None:
        yield "model", f"{config.rl_module_settings.model}: {NOT_CACHED}"
        parts = learner_bytes(config, _MILLION)
        names = ", ".join(name for name in parts if parts[name])
        yield "learner memory", f"{sum(parts.values()) / 1e6:.3g} bytes per parameter ({names}), without activations"
        width = 4 if config.env_runners_settings.dtype == "float32" else 2
        yield "engine memory", f"{width} bytes per parameter, and its cache"
        return
    dtype = config.rl_module_settings.dtype
    yield (
        "model",
        f"{model.name}: {model.architecture}, {model.parameters:,} parameters, computing in {dtype}",
    )
    if model.text_of:
        yield "", f"the text part of {model.text_of}: trained, saved and exported without its other parts"
    if config.teacher_settings is not None:
        parameters = config.measured.teacher_parameters
        size = f"{parameters:,} parameters, frozen" if parameters else NOT_CACHED
        yield "teacher", f"{config.teacher_settings.model}: {size}"
    activations = activation_bytes(config, model, use)
    yield "learner memory", _learner_memory(config, model, use, activations)
    yield "engine memory", _engine_memory(config, model, use, at_once)
    if not reserved(config).gpus and activations is not None:
        yield Line("processes", *_process_memory(config, model, use, activations, at_once))
    yield from room_lines(config, model, use.plain)
    response = config.env_runners_settings.context_response
    prompt = f"prompt {use.prompt} + " if use.prompt else ""
    yield "context", f"{prompt}response {response} = {use.plain} of {model.context or 'unknown'} tokens"
    if use.longest > use.plain:
        over = model.context is not None and use.longest > model.context
        cut = f", more than the model's {model.context}: attempts are then quoted in part, and answers may be cut off"
        yield "", f"up to {use.longest} tokens with further turns{cut if over else ''}"
    started, expected = config.measured.engine_context or 0, config.measured.engine_length or 0
    if started > expected:
        yield "", f"vLLM has room for {started}: an environment may write more than {FEEDBACK_TOKENS} tokens at a time"


def _learner_memory(config: "BaseConfig", model: ModelFacts, use: ContextUse, activations: int | None) -> str:
    text = sum_text(learner_bytes(config, model))
    if activations is None:
        return f"{text}, without activations"
    tokens, several = microbatch_tokens(config, use)
    peak = learner_peak(config, model, activations, several=several)
    return f"{text}; with activations of {tokens} tokens, {bytes_text(activations)}, up to {bytes_text(peak)}"


def _engine_memory(config: "BaseConfig", model: ModelFacts, use: ContextUse, at_once: int) -> str:
    runners, parts = config.env_runners_settings, engine_bytes(config, model, use, at_once)
    if runners.engine != "vllm":
        return f"{sum_text(parts)} of {at_once} × {use.plain} tokens at most"
    if "cache" not in parts:
        return f"{sum_text(parts)}, and its cache in the rest of its share of a GPU"
    whole = parts["cache"] // max(1, sequence_bytes(config, model))
    length = config.measured.engine_length or model.context
    return f"{sum_text(parts)}: {whole} sequences of {length} tokens at a time, or more if shorter"


def _process_memory(
    config: "BaseConfig", model: ModelFacts, use: ContextUse, activations: int, at_once: int
) -> tuple[str, bool]:
    """Write what each process takes of this machine's memory where there are no GPUs, and say whether it is enough."""
    runners, learners = config.env_runners_settings, config.learners_settings
    engine = sum(engine_bytes(config, model, use, at_once).values()) + (VLLM_BYTES if runners.engine == "vllm" else 0)
    learner = learner_peak(config, model, activations, several=microbatch_tokens(config, use)[1])
    driver = (0 if runners.num_env_runners else engine) + (0 if learners.num_learners else learner)
    processes = [("driver", 1, driver), ("env runner", runners.num_env_runners, engine)]
    processes.append(("learner", learners.num_learners, learner))
    texts = [
        f"{f'{count} × ' if count > 1 else ''}{name} {bytes_text(LIBRARIES_BYTES + size)}"
        for name, count, size in processes
        if count
    ]
    text = f"{', '.join(texts)} at most, libraries included"
    there, memory = available(), memory_bytes()
    if there is None or there.where != "this machine":
        return text, True
    enough = sum(max(count, 0) * (LIBRARIES_BYTES + size) for _, count, size in processes) <= memory
    return f"{text}; this machine has {bytes_text(memory)}{'' if enough else _LESS_MEMORY}", enough


def _data_lines(config: "BaseConfig", environment: EnvironmentFacts) -> Iterator[tuple[str, str]]:
    settings, evaluation = config.environment_settings, config.evaluation_settings
    data = f"{settings.id}, {settings.data}" if settings.data else settings.id
    if environment.queries is None:
        yield "environment", f"{data}: {_NOT_FETCHED}"
    else:
        steps = environment.queries / config.training_settings.queries_per_step
        yield "environment", f"{data}: {environment.queries} queries, an epoch is {steps:.3g} steps"
    if environment.trial:
        yield "trial", environment.trial
    when = f"before, after and every {evaluation.interval} steps" if evaluation.interval else "before and after"
    yield "evaluation", evaluation_text(config, environment.held_out, when)


def evaluation_text(config: "BaseConfig", held_out: int | None, when: str) -> str:
    """Write what is evaluated on, given the number of held-out problems (None: not fetched)."""
    evaluation = config.evaluation_settings
    by_part = evaluation.data if isinstance(evaluation.data, dict) else {}
    parts = ", ".join(f"{name} {source}" for name, source in by_part.items())
    name = parts or evaluation.environment_arguments().get("data") or "the training problems"
    if held_out is None:
        return f"{name}: {_NOT_FETCHED}"
    problems = min(held_out, evaluation.limit or held_out)
    return f"{name}: {problems} problems × {evaluation.samples} responses, {when}"


def sum_text(parts: Mapping[str, int]) -> str:
    """Write the bytes of all parts, then those of each."""
    each = [f"{name} {bytes_text(size)}" for name, size in parts.items()]
    return f"{bytes_text(sum(parts.values()))}: {' + '.join(each)}"


def bytes_text(count: int) -> str:
    """Write bytes in the unit that fits."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
