"""The source of a step's groups: queries, prompts, rollouts and follow-up rounds, some steps ahead if configured.

With `training.max_off_policy_steps: K` above 0 rollouts of the next K steps run while the learners work, and weights
change under them: the tokens of a response may be of several policies. Step s is begun once the engines hold the
weights of step s - K, and steps are trained in the order in which they were begun, each with all of its groups. So no
token is of a policy more than K steps old, nothing is dropped, and which responses a step trains on does not depend on
how long they take.

The ratio of the loss is that of the new policy to the one at the step's start, whose log-probs the scoring pass or the
first optimizer step measures, so that its clip bounds what this step changes. What lies between the policy that sampled
a token and the one at the step's start is the importance weight of `training.importance_cap`: it divides by the
engine's own log-probs. The two factors are those of decoupled PPO (J. Hilton et al., arXiv 2110.00641); the second one
is truncated. The history keeps the log-probs at the step's start, for these rollouts too.
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.advantages import AdvantageEstimator
from algorithms.grpo.mechanism import Mechanism
from algorithms.grpo.plugin_checks import checked_prompts
from algorithms.grpo.query_sampler import QuerySampler
from algorithms.grpo.types import Group, Sample, StepBatch
from algorithms.rollout.failures import EpisodesFailed, FailureLimit, FailureWatch, ToolWatch
from algorithms.rollout.stream import Ticket
from algorithms.rollout.types import Prompt, Request, Rollout, Sampling, Split
from algorithms.rollout.workers import RolloutWorkers
from algorithms.utils.rng import RngStream, group_seeds

MOST_FOLLOW_UPS = 8

_logger = logging.getLogger(__name__)


@dataclass
class StepRollouts:
    """What a step rolls out, round by round: what is sampled, and what has come back.

    Args:
        queries: the step's own; `prompts` begins with theirs.
        ticket: of the first round, where it runs ahead.
        rollouts: of all rounds; None until the first one is there.
        groups: of all rounds, once they are there.
    """

    step: int
    queries: Sequence[str]
    prompts: list[Prompt]
    requests: list[Request]
    ticket: Ticket | None = None
    rollouts: list[Rollout] | None = None
    groups: list[Group] = field(default_factory=list)

    def with_groups(self) -> "StepRollouts":
        """Return a copy that further rounds can be added to: a step that fails is repeated from its first round."""
        rollouts = list(self.rollouts or ())
        groups = collect_groups(self.prompts, rollouts)
        return replace(self, prompts=list(self.prompts), requests=list(self.requests), rollouts=rollouts, groups=groups)

    def saved(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the queries, and sizes and variants of their prompts if there are any."""
        own = self.prompts[: len(self.queries)]
        forms: dict[str, list[Any]] = {
            "sizes": [prompt.size for prompt in own],
            "variants": [prompt.variant for prompt in own],
        }
        return {"step": self.step, "queries": list(self.queries)} | {
            name: each for name, each in forms.items() if any(each)
        }


class RolloutSource:
    """Makes step batches.

    Args:
        workers: roll out.
        sampler: chooses the queries.
        mechanisms: the enabled ones; their hooks add prompts and follow-up rounds, and say what is informative.
        training: section `training`.
        sampling: how responses are sampled.
        seed: of the run.
        estimator: of advantages; says what is informative as well.
        max_failed_share: of a step's episodes; above it the step fails, see `env_runners.max_failed_share`.
    """

    def __init__(
        self,
        workers: RolloutWorkers,
        sampler: QuerySampler,
        mechanisms: Sequence[Mechanism],
        training: TrainingSettings,
        sampling: Sampling,
        seed: int,
        estimator: AdvantageEstimator | None = None,
        max_failed_share: float = 1.0,
    ) -> None:
        self._workers, self._sampler, self._mechanisms = workers, sampler, mechanisms
        self._teachers: list[Mechanism | AdvantageEstimator] = [*mechanisms, *([estimator] if estimator else [])]
        self._training, self._sampling, self._seed = training, sampling, seed
        self._failure_limit = FailureLimit(max_failed_share)
        self._watches = (FailureWatch("training", "They are left out (rollout/failed_share)"), ToolWatch())
        self._steps: deque[StepRollouts] = deque()
        self._repeated: dict[int, Mapping[str, Any]] = {}
        self._step_of_version: dict[int, int] = {}

    def next_batch(self, step: int) -> StepBatch:
        """Return the batch to train on now; with a lag, first begin the rollouts of further steps.

        Raises:
            EpisodesFailed: too many episodes of the step failed.
        """
        self._step_of_version[self._workers.version] = step
        first = self._begin_steps(step)
        batch = StepBatch(step)
        with self._draws_undone():
            if first.rollouts is None:
                sent, requests = first.ticket, first.requests
                first.rollouts = self._workers.rollout(requests) if sent is None else self._workers.finish(sent)
            done = first.with_groups()
            self._follow_up(done)
            resampled = self._resample_uninformative(batch, done, first.prompts)
            rollouts = done.rollouts or []
            try:
                self._failure_limit.check(rollouts)
            except EpisodesFailed:
                first.rollouts = first.ticket = None  # asked again, if the step is repeated
                raise
        for watch in self._watches:
            if warning := watch.observe(rollouts):
                _logger.warning(warning)
        batch.record |= self._workers.metrics(done.requests, rollouts)
        batch.record["sampling/refills"] = float(resampled)
        batch.record["sampling/dropped_groups"] = float(len(batch.dropped))
        staleness = self._staleness(step, rollouts)
        batch.lag = int(staleness["rollout/policy_lag"])
        batch.record |= staleness
        self._steps.popleft()
        self._repeated.pop(step, None)
        self._sampler.taken.pop(step, None)
        return batch

    @property
    def state(self) -> dict[str, Any]:
        """Return which queries come next, as plain data.

        Of what is being rolled out it has the queries and group sizes: after a resume all of them are asked again. To
        keep the responses that have ended and to repeat the others would favor short ones.
        """
        under_way = self._repeated | {each.step: each.saved() for each in self._steps}
        return {"query_position": self._sampler.drawn, "under_way": [under_way[step] for step in sorted(under_way)]}

    def restart(self, state: Mapping[str, Any]) -> None:
        """Drop unfinished rollouts, and continue with the queries of `state`: the policy may be another one."""
        for each in self._steps:
            if each.ticket is not None and each.rollouts is None:
                self._workers.abandon(each.ticket)
        self._steps.clear()
        self._sampler.drawn = state["query_position"]
        self._repeated = {each["step"]: each for each in state.get("under_way", ())}
        self._sampler.taken = {step: list(each["queries"]) for step, each in self._repeated.items()}

    def repeat(self, step: int, began: Mapping[str, Any]) -> None:
        """Have a step that failed come again: from its first round if that is still here, else from its queries.

        Args:
            step: its number.
            began: the state when it began.
        """
        if not self._steps or self._steps[0].step != step:
            self.restart(began)

    def _begin_steps(self, step: int) -> StepRollouts:
        """Begin the rollouts of all steps that these weights may sample for; return the step's own."""
        if self._steps and self._steps[0].step != step:
            raise ValueError(f"step {self._steps[0].step} is in progress, not {step}; fix: restart() first")
        while len(self._steps) <= self._training.max_off_policy_steps:
            with self._draws_undone():
                begun = self._begin(step + len(self._steps))
                if self._training.max_off_policy_steps:
                    begun.ticket = self._workers.start(begun.requests)
            self._steps.append(begun)
        return self._steps[0]

    @contextlib.contextmanager
    def _draws_undone(self) -> Iterator[None]:
        """Give back the queries that were drawn within, where it fails: the step's repetition draws them again."""
        drawn, taken = self._sampler.drawn, {step: list(queries) for step, queries in self._sampler.taken.items()}
        try:
            yield
        except BaseException:
            self._sampler.drawn, self._sampler.taken = drawn, taken
            raise

    def _staleness(self, step: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Measure by how many steps the tokens' policies are behind the one that is trained."""
        first = step - self._training.max_off_policy_steps
        step_of = self._step_of_version = {v: began for v, began in self._step_of_version.items() if began >= first}
        spans = [span for rollout in rollouts for span in rollout.version_spans]
        lags = [(step - step_of.get(version, step), tokens) for version, tokens in spans]
        tokens = sum(count for _, count in lags)
        return {
            "rollout/policy_lag": float(max((lag for lag, _ in lags), default=0)),
            "rollout/policy_lag_mean": sum(lag * count for lag, count in lags) / max(1, tokens),
            "rollout/mixed_policies": sum(len(each.versions) > 1 for each in rollouts) / max(1, len(rollouts)),
        }

    def _begin(self, step: int) -> StepRollouts:
        saved = self._repeated.get(step)
        queries = saved["queries"] if saved else self._sampler.take(self._training.queries_per_step, step)
        prompts = [Prompt(uid) for uid in queries]
        for mechanism in self._mechanisms:
            shaped = mechanism.shape_prompts(prompts, step)
            prompts = checked_prompts(mechanism, "shape_prompts", shaped, len(queries))
        if saved:  # what they were made of may have been learned from since
            prompts = saved_forms(prompts, saved)
        for mechanism in self._mechanisms:
            prompts += checked_prompts(mechanism, "prompts", mechanism.prompts(queries, step))
        return StepRollouts(step, queries, prompts, self._requests(prompts, step, RngStream.ROLLOUT))

    def _requests(
        self,
        prompts: Sequence[Prompt],
        step: int,
        stream: RngStream,
        occasion: int = 0,
        before: StepRollouts | None = None,
    ) -> list[Request]:
        """Make the requests of some prompts; their seeds are a function of step, stream, occasion and place."""
        sizes = [prompt.size or self._training.group_size for prompt in prompts]
        seeds = group_seeds(self._seed, step, stream, sizes, self._training.group_size, occasion)
        first_group = before.requests[-1].group + 1 if before and before.requests else 0
        first_id = len(before.requests) if before else 0
        return make_requests(prompts, sizes, seeds, self._sampling, first_id=first_id, first_group=first_group)

    def _roll_out(self, done: StepRollouts, prompts: list[Prompt], stream: RngStream, occasion: int) -> None:
        """Add a round."""
        requests = self._requests(prompts, done.step, stream, occasion, done)
        rollouts = self._workers.rollout(requests)
        first_group = requests[0].group if requests else 0
        done.prompts += prompts
        done.requests += requests
        done.rollouts = [*(done.rollouts or ()), *rollouts]
        done.groups += collect_groups(prompts, rollouts, first_group=first_group)

    def _follow_up(self, done: StepRollouts) -> None:
        """Roll out what mechanisms ask for after they have seen the groups."""
        for number in range(1, MOST_FOLLOW_UPS + 1):
            prompts = [
                prompt
                for each in self._mechanisms
                for prompt in checked_prompts(each, "follow_up", each.follow_up(done.groups, number))
            ]
            if not prompts:
                return
            self._roll_out(done, prompts, RngStream.FOLLOW_UP, number)

    def _resample_uninformative(self, batch: StepBatch, done: StepRollouts, first: Sequence[Prompt]) -> int:
        """Replace groups that teach nothing by those of further queries; returns in how many rounds.

        As many groups as the first round has prompts are wanted, and the informative ones of follow-ups on top. A round
        samples as many queries as the share of informative groups so far lets expect to be enough, and never more than
        are wanted. After `training.max_resample_rounds` the step makes do with what it has, be it nothing.

        Source: DAPO, arXiv 2503.14476, section 3.2; the bound is ours.
        """
        most, rounds = self._training.max_resample_rounds, 0
        if not most:
            batch.groups = done.groups
            return 0
        useful = [self._is_informative(group) for group in done.groups]
        own = {id(prompt) for prompt in first}
        followed = [each for group, each in zip(done.groups, useful, strict=True) if id(group.prompt) not in own]
        wanted = len(first) + sum(followed)
        while sum(useful) < wanted and rounds < most:
            rounds += 1
            count = queries_needed(wanted, sum(useful), len(useful))
            prompts = [Prompt(uid) for uid in self._sampler.take(count, batch.step, rounds)]
            self._roll_out(done, prompts, RngStream.REFILL, rounds)
            useful += [self._is_informative(group) for group in done.groups[len(useful) :]]
        batch.groups = [group for group, teaches in zip(done.groups, useful, strict=True) if teaches][:wanted]
        kept = {id(group) for group in batch.groups}
        batch.dropped = [group for group in done.groups if id(group) not in kept]
        return rounds

    def _is_informative(self, group: Group) -> bool:
        """Return whether GRPO, a mechanism or the estimator of advantages learns something from a group."""
        return not group.homogeneous or any(teacher.is_informative(group) for teacher in self._teachers)


def queries_needed(wanted: int, useful: int, sampled: int) -> int:
    """Count the queries to sample for `wanted` informative groups, where `useful` of `sampled` were."""
    return min(wanted, math.ceil((wanted - useful) * sampled / useful)) if useful else wanted


def saved_forms(prompts: Sequence[Prompt], saved: Mapping[str, Any]) -> list[Prompt]:
    """Give prompts of the same queries the sizes and variants that `StepRollouts.saved` has kept."""
    sizes = saved.get("sizes", [prompt.size for prompt in prompts])
    variants = saved.get("variants", [""] * len(prompts))
    sized = [replace(each, size=size) for each, size in zip(prompts, sizes, strict=True)]
    pairs = zip(sized, variants, strict=True)
    return [each if each.variant == variant else each.in_form(variant) for each, variant in pairs]


def make_requests(
    prompts: Sequence[Prompt],
    sizes: Sequence[int],
    seeds: Sequence[int],
    sampling: Sampling,
    *,
    first_id: int = 0,
    first_group: int = 0,
) -> list[Request]:
    """Make `sizes[i]` requests of prompt i, each with its own seed.

    Args:
        prompts: each makes a group.
        sizes: responses of each prompt.
        seeds: one a request, those of a prompt in a row.
        sampling: how all are sampled.
        first_id: ids count from here.
        first_group: groups count from here.
    """
    greedy = replace(sampling, temperature=0.0)

    def request(place: int, prompt: Prompt, group: int, seed: int) -> Request:
        split = Split.TRAIN if prompt.judged else Split.QUESTION
        return Request(place, prompt, group, seed, greedy if prompt.greedy else sampling, split)

    owners = [index for index, size in enumerate(sizes) for _ in range(size)]
    return [
        request(first_id + i, prompts[owner], first_group + owner, seed)
        for i, (owner, seed) in enumerate(zip(owners, seeds, strict=True))
    ]


def collect_groups(prompts: Sequence[Prompt], rollouts: Sequence[Rollout], *, first_group: int = 0) -> list[Group]:
    """Sort rollouts into their prompts' groups, without those that could not be graded, and without empty groups."""
    groups = [Group(prompt) for prompt in prompts]
    for rollout in rollouts:
        if rollout.error is None and rollout.response_length:
            groups[rollout.group - first_group].samples.append(Sample(rollout, reward=rollout.reward))
    return [group for group in groups if group.samples]
