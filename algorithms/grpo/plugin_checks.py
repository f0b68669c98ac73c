"""Check what plug-ins return: a wrong value ends the run in a line that names the class, the hook and the fix."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from algorithms.config.errors import ConfigError, close_match
from algorithms.config.plugins import Plugin
from algorithms.config.sections import TrainingSettings
from algorithms.grpo.mechanism import State
from algorithms.grpo.types import Group, Sample
from algorithms.rollout.types import Prompt
from algorithms.utils.errors import RunError
from algorithms.utils.files import plain

_PER_RESPONSE = "return float [G], or for each response of the group float [L], a value per token"


class PluginError(RunError):
    """A hook of a mechanism, query sampler or advantage estimator returned what a step cannot use."""


def checked_advantages(plugin: Plugin, group: Group, found: Any) -> Any:
    """Return advantages as they are.

    Args:
        plugin: whose hook `advantages` returned them.
        group: of G samples with L tokens of the policy each.
        found: float [G], or for each sample a number or float [L].

    Raises:
        PluginError: another number of samples or tokens, or a value that is no finite number although all of the
            group's log-probs are: those of a policy that overflowed are `training.max_skipped_steps`'s.
    """
    try:
        values = [np.asarray(value, dtype=np.float64) for value in found]
    except (TypeError, ValueError) as error:
        raise _wrong(plugin, "advantages", f"a {type(found).__name__} ({error})", _PER_RESPONSE) from error
    if len(values) != len(group.samples):
        what = f"{len(values)} values for a group of {len(group.samples)} responses"
        raise _wrong(plugin, "advantages", what, _PER_RESPONSE)
    overflowed = not all(sample.is_finite for sample in group.samples)
    for value, sample in zip(values, group.samples, strict=True):
        if value.ndim and value.shape != (sample.rollout.response_length,):
            what = f"an array of shape {value.shape} for a response of {sample.rollout.response_length} tokens"
            raise _wrong(plugin, "advantages", what, _PER_RESPONSE)
        if not overflowed and not np.isfinite(value).all():
            rewards = ", ".join(f"{each.training_reward:g}" for each in group.samples)
            what = f"{value[~np.isfinite(value)][0]} for a group with the rewards {rewards}"
            raise _wrong(plugin, "advantages", what, "return finite numbers, also for a group of equal rewards")
    return found


def check_rewards(plugin: Plugin, group: Group) -> None:
    """Check what hook `rewards` has set.

    Raises:
        PluginError: a `shaped_reward` that is no finite number although the sample's log-probs are.
    """
    for sample in group.samples:
        paid = sample.shaped_reward
        is_number = isinstance(paid, float | int | np.number) and (math.isfinite(paid) or not sample.is_finite)
        if paid is not None and not is_number:
            raise _wrong(
                plugin, "rewards", f"{paid!r}", "set a finite shaped_reward, or None", did="set shaped_reward to"
            )


def loss_parts(samples: Sequence[Sample]) -> list[dict[Any, Any]]:
    """Return what each sample brings to the loss: its `terms` and `inputs`."""
    return [{**sample.terms, **sample.inputs} for sample in samples]


def changed_samples(samples: Sequence[Sample], before: Sequence[Mapping[Any, Any]]) -> list[Sample]:
    """Return the samples whose `loss_parts` a hook has changed, given those from before it."""
    found = zip(samples, loss_parts(samples), before, strict=True)
    return [sample for sample, new, old in found if new.keys() != old.keys() or any(new[k] is not old[k] for k in new)]


def check_terms(
    plugin: Plugin, hook: str, samples: Sequence[Sample], training: TrainingSettings, *, complete: bool = True
) -> None:
    """Check the terms of the loss that samples name, before a learner meets them.

    Args:
        plugin: whose hook has named them.
        hook: its name.
        samples: that are trained on.
        training: the run's section; `beta` decides whether rows carry the reference's log-probs.
        complete: whether these are all samples of the step: then one of them has to carry what a term reads.

    Raises:
        PluginError: no such term, options that it does not take, a weight or an input that is neither a finite number
            nor one of each token, or a value that the term reads and no row carries.
    """
    from algorithms.losses.base import POLICY_COLUMNS, ROW_COLUMNS, LossSettings, build_term  # imports torch

    settings = LossSettings.of(training)
    carried = {name for sample in samples for name in sample.inputs}
    if taken := sorted(carried & (POLICY_COLUMNS | ROW_COLUMNS)):
        raise _wrong(
            plugin, hook, f"inputs[{taken[0]!r}]", "give it another name, as every row has this one", did="set"
        )
    known = (POLICY_COLUMNS | ROW_COLUMNS | carried) - (set() if training.loss_beta > 0 else {"reference_logprobs"})
    for each in {each for sample in samples for each in sample.terms}:
        try:
            kind, _ = build_term(each, settings)
        except (ConfigError, AttributeError, TypeError) as error:
            raise _wrong(plugin, hook, f"the term {each!r} ({error})", "name one with term(…)", did="set") from error
        for name in sorted(set(kind.reads()) - known) if complete else ():
            what, fix = f"the term {each.name}, which reads {name}", f"set sample.inputs[{name!r}]"
            if name in ROW_COLUMNS:
                fix = "set training.beta above 0"
            elif near := close_match(name, known):
                what, fix = f"{what} (did you mean {near}?)", f"rename the argument, or {fix}"
            raise _wrong(plugin, hook, what, fix, did="set")
    for sample in samples:
        for each, weight in sample.terms.items():
            _check_tokens(plugin, hook, f"the weight of {each.name}", weight, sample)
        for name, value in sample.inputs.items():
            _check_tokens(plugin, hook, f"inputs[{name!r}]", value, sample)


def _check_tokens(plugin: Plugin, hook: str, what: str, value: Any, sample: Sample) -> None:
    """Raise PluginError unless a hook has set a finite number, or one of each of a sample's tokens."""
    length = sample.rollout.response_length
    try:
        values = np.asarray(value, np.float64)
    except (TypeError, ValueError, RuntimeError):  # torch refuses a tensor that needs a gradient
        came = _short(value)
    else:
        if value is None:
            came = "None"
        elif not values.ndim or values.shape == (length,):
            if np.isfinite(values).all() or not sample.is_finite:
                return
            came = f"{values[~np.isfinite(values)][0]}"
        else:
            came = f"an array of shape {values.shape} for a response of {length} tokens"
    fix = f"set a finite number, or float [{length}], a value per token"
    raise _wrong(plugin, hook, f"{what} to {came}", fix, did="set")


def checked_prompts(plugin: Plugin, hook: str, found: Any, count: int | None = None) -> list[Prompt]:
    """Return prompts as a list.

    Args:
        plugin: whose hook returned them.
        hook: its name.
        found: prompts.
        count: how many there have to be; None: any number.

    Raises:
        PluginError: no list, one of another length, or one that holds something else.
    """
    if not isinstance(found, Sequence) or not all(isinstance(each, Prompt) for each in found):
        raise _wrong(plugin, hook, _short(found), "return a list of Prompt, empty if there are none")
    if count is not None and len(found) != count:
        raise _wrong(plugin, hook, f"{len(found)} prompts for {count}", "return as many as it gets, changed or not")
    return list(found)


def checked_queries(plugin: Plugin, found: Any, count: int, known: Collection[str]) -> list[str]:
    """Return chosen queries as a list.

    Args:
        plugin: whose hook `choose` returned them.
        found: uids.
        count: how many there have to be.
        known: the uids of the training queries.

    Raises:
        PluginError: no list, one of another length, or an unknown uid.
    """
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise _wrong(plugin, "choose", _short(found), f"return a list of {count} uids")
    chosen = list(found)
    if len(chosen) != count:
        raise _wrong(
            plugin, "choose", f"{len(chosen)} queries where {count} were asked for", "repeat some if it has to"
        )
    for uid in chosen:
        if uid not in known:
            raise _wrong(plugin, "choose", _short(uid), "return uids of self.services.uids")
    return chosen


def checked_state(plugin: Plugin, found: Any) -> State:
    """Return a plug-in's state with its second part as plain data.

    Raises:
        PluginError: no pair, an array that is none, or data that JSON does not hold.
    """
    fix = "return a dict of NumPy arrays, and a dict of what JSON holds: text, numbers, lists and dicts of them"
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, dict) for part in found)):
        raise _wrong(plugin, "state", _short(found), fix)
    arrays, data = found
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise _wrong(plugin, "state", f"{name}, which is no array of numbers", fix)
    try:
        return arrays, plain(data)
    except TypeError as error:
        raise _wrong(plugin, "state", str(error), fix) from error


def _wrong(plugin: Plugin, hook: str, what: str, fix: str, did: str = "returned") -> PluginError:
    kind = type(plugin)
    return PluginError(f"{kind.__module__}:{kind.__qualname__}.{hook} {did} {what}; fix: {fix}")


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"
