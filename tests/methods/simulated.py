"""A run without Ray, model or engine: real queries' names, real seeds, responses that seeds decide."""

import json
from types import SimpleNamespace

import numpy as np

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.mechanism import Services
from algorithms.grpo.registry import mechanisms, query_samplers
from algorithms.grpo.rollout_source import RolloutSource
from algorithms.grpo.state import pack_states, restore_states
from algorithms.grpo.types import Group, Prompt, Sample, StepBatch
from algorithms.rollout.attempts import attempt_of
from algorithms.rollout.types import Context, Sampling
from r3env.core import Query
from tests.hand_made import answer

UIDS = [f"q{number:02}" for number in range(24)]
# A third of the queries fails always, a third never.
RATES = {uid: [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 0.0, 0.0, 1.0][number % 9] for number, uid in enumerate(UIDS)}


class Workers:
    """Answer each request by its seed, more often correctly the easier the query is."""

    version = 0

    def __init__(self, rates=None):
        self.rates, self.rounds = rates or RATES, []

    def start(self, requests):
        return list(requests)

    def finish(self, ticket):
        return self.rollout(ticket)

    def abandon(self, ticket):
        pass

    def rollout(self, requests):
        self.rounds.append(list(requests))
        return [self._rollout(request) for request in requests]

    def metrics(self, requests, rollouts):
        return {}

    def _rollout(self, request):
        draw = 0.5 if request.sampling.temperature == 0 else request.seed % 1000 / 1000
        response = [2 + request.seed % 5] * (1 + request.seed % 7)
        return answer(request, prompt=[1], response=response, correct=draw < self.rates[request.uid])


class Quoter:
    """Quotes whole attempts; a token's text is its number."""

    def text(self, tokens, loss_mask):
        return " ".join(str(token) for token in tokens[loss_mask])

    def shorten(self, text, limit):
        return text[:limit]

    def attempt(self, tokens, loss_mask, text, feedback=""):
        return attempt_of(tokens, int(loss_mask.argmax()), text, feedback)

    def truncate(self, attempt, following=""):
        return attempt


def services(uids=UIDS, seed=0, config=None, info=lambda uid: {}, **more):
    """What mechanisms may ask for."""
    return Services(
        config=config or SimpleNamespace(training_settings=TrainingSettings(group_size=4, queries_per_step=5)),
        seed=seed,
        uids=uids,
        query=lambda uid: Query(uid, "1 + 1", "2", info=info(uid)),
        score=more.pop("score", print),
        truncator=lambda limit: Quoter(),
        **more,
    )


def made(name, given=None, **settings):
    """A sampler or mechanism of the library, by name."""
    kind = (query_samplers() | mechanisms())[name]
    return kind(kind.settings_class(**settings), given or services())


def group(uid, *outcomes, context=Context.PLAIN, replayed=(), size=None):
    """A group of fresh outcomes, and of replayed ones."""
    samples = [_sample(uid, outcome, False) for outcome in outcomes] + [_sample(uid, one, True) for one in replayed]
    return Group(Prompt(uid, context, size=size), samples)


def _sample(uid, outcome, replayed):
    rollout = SimpleNamespace(uid=uid, correct=bool(outcome), response_tokens=np.array([2, 3]), response_length=2)
    return Sample(rollout, reward=float(outcome), replayed=replayed)


class Run:
    """Steps of a source, a sampler and mechanisms, as the algorithm makes them."""

    def __init__(self, sampler="epoch", mechanisms=(), settings=None, rates=None, info=lambda uid: {}, **training):
        self.training = TrainingSettings(**{"group_size": 4, "queries_per_step": 5} | training)
        given = services(config=SimpleNamespace(training_settings=self.training), info=info)
        settings = settings or {}
        self.workers, self.services = Workers(rates), given
        self.sampler = made(sampler, given, **settings.get(sampler, {}))
        self.active = [*(made(name, given, **settings.get(name, {})) for name in mechanisms), self.sampler]
        self.source = RolloutSource(self.workers, self.sampler, self.active, self.training, Sampling(), 0)
        self.step = 0

    def train(self, steps):
        """Make some steps; return what each rolled out, trained on and reported."""
        return [self._train() for _ in range(steps)]

    def _train(self):
        self.services.step = self.step
        for each in self.active:
            each.metrics = dict(each.tags)
        batch = self.source.next_batch(self.step)
        for each in self.active:
            each.compose(batch)
        for each in self.active:
            each.update_history(batch)
        self.step += 1
        self.batch = batch
        rolled_out = [
            (one.prompt.uid, one.prompt.context, [int(s.rollout.tokens[-1]) for s in one.fresh])
            for one in batch.rolled_out
        ]
        metrics = {tag: value for each in self.active for tag, value in each.metrics.items()}
        return rolled_out, [one.prompt.uid for one in batch.groups], metrics

    def save(self):
        """What a checkpoint keeps, through JSON."""
        arrays, states = pack_states(self.active, None)
        arrays = {name: array.copy() for name, array in arrays.items()}
        return arrays, json.loads(json.dumps({"step": self.step, "states": states, **self.source.state}))

    def load(self, saved):
        """Go on from there."""
        arrays, state = saved
        self.source.restart(state)
        self.step = state["step"]
        restore_states(self.active, None, arrays, state["states"])
        return self

    @staticmethod
    def update(one, *groups, dropped=(), step=0):
        """Let a mechanism learn from a step."""
        one.update_history(StepBatch(step, groups=list(groups), dropped=list(dropped)))
