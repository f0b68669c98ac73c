"""An engine without a model, with the latency and lengths of a real one, for measuring the driver."""

import heapq
import itertools
import math
import time
import zlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest

# Responses are cut from one array of tokens: to draw each would cost more than to hand it on.
POOL_TOKENS = 1 << 20
# A step gives control back after this long even when no response has ended.
LONGEST_STEP_S = 0.02
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Lengths:
    """The lengths of responses: log-normal, partly decided by the prompt, partly by the sample.

    Args:
        mean: tokens of a response, before the limit cuts the longest ones.
        sigma: standard deviation of the logarithm; 0: all are equally long.
        prompt_share: share of that variance which all samples of a prompt have in common.
        limit: tokens at which a response is truncated.
    """

    mean: float = 8192.0
    sigma: float = 0.6
    prompt_share: float = 0.5
    limit: int = 32768

    def sample(self, prompt: int, seed: int, limit: int) -> tuple[int, bool]:
        """Return the length of the response that (prompt, seed) always has, and whether it is truncated.

        Args:
            prompt: any number that all samples of a prompt share.
            seed: the sample's own.
            limit: the request's own; the lower one counts.
        """
        shared, own = _standard_normal(prompt), _standard_normal(seed)
        z = math.sqrt(self.prompt_share) * shared + math.sqrt(1.0 - self.prompt_share) * own
        wanted = round(self.mean * math.exp(self.sigma * z - self.sigma**2 / 2))
        cut = min(limit, self.limit)
        return max(1, min(wanted, cut)), wanted > cut


@dataclass(frozen=True)
class Latency:
    """The latency of an engine.

    Args:
        prefill_tokens_per_s: rate at which prompts that are not in the prefix cache are read; decoding waits meanwhile.
        step_s: seconds of a decoding step, however small its batch.
        sequence_s: seconds that each sequence of the batch adds to a step.
        slowdown: factor on everything; above 1: a straggler.
    """

    prefill_tokens_per_s: float = 40_000.0
    step_s: float = 0.02
    sequence_s: float = 0.00032
    slowdown: float = 1.0

    def seconds_per_token(self, batch: int) -> float:
        """Return the seconds of one decoding step with so many sequences."""
        return self.slowdown * (self.step_s + self.sequence_s * batch)


@dataclass
class Usage:
    """An engine's use of its time, in modeled seconds.

    Args:
        busy_s: with at least one sequence in the batch.
        sequence_s: summed over the sequences of the batch; divided by its size and the time, the occupancy.
        tokens: decoded so far, those of aborted responses included.
    """

    busy_s: float = 0.0
    sequence_s: float = 0.0
    tokens: float = 0.0


class ModelClock:
    """Modeled seconds, which pass `speed` times as fast as real ones; the speed may change on the way."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._modeled, self._since = 0.0, time.monotonic()

    def now(self) -> float:
        """Return modeled seconds since the clock was made."""
        return self._modeled + (time.monotonic() - self._since) * self.speed

    def set_speed(self, speed: float) -> None:
        """Change the speed of time from now on."""
        self._modeled, self._since, self.speed = self.now(), time.monotonic(), speed


class SimulatedEngine(Engine):
    """Continuous batching as a clock: between two responses that end nothing is computed.

    Args:
        latency: the speed that is modeled.
        lengths: of the responses.
        max_num_seqs: size of the decoding batch; further requests wait in line.
        clock: the modeled time; engines of a process may share one.
    """

    continuous_batching = True

    def __init__(
        self,
        latency: Latency | None = None,
        lengths: Lengths | None = None,
        *,
        max_num_seqs: int = 256,
        clock: ModelClock | None = None,
    ) -> None:
        self.latency, self.lengths = latency or Latency(), lengths or Lengths()
        self.max_num_seqs, self.clock = max_num_seqs, clock or ModelClock()
        self.usage = Usage()
        self._now = self.clock.now()
        self._decoded = 0.0  # tokens that a sequence has grown by if it was in the batch all the time
        self._reading_s = 0.0  # prefill that decoding has to wait for
        self._waiting: dict[int, GenerationRequest] = {}
        self._queue: deque[int] = deque()
        self._running: dict[int, int] = {}  # key -> ticket; a heap entry with another ticket was aborted
        self._ends: list[tuple[float, int, int, Completion]] = []
        self._ended: dict[int, Completion] = {}
        self._tickets = itertools.count()
        self._cached_prompts: set[int] = set()
        self._tokens, self._logprobs = _response_pool()

    @property
    def unfinished(self) -> int:
        """Submitted requests whose completions `step` has not handed back."""
        return len(self._waiting) + len(self._running) + len(self._ended)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Take a request; it joins the batch now, or when there is room."""
        self._run_until_now()
        self._waiting[key] = request
        self._queue.append(key)

    def step(self) -> list[tuple[int, Completion]]:
        """Sleep until a response ends, though not for long, and return those that did."""
        ended = self.catch_up()
        if not ended and self.unfinished:
            time.sleep(min(LONGEST_STEP_S, self.next_end_s()))
            ended = self.catch_up()
        return ended

    def catch_up(self) -> list[tuple[int, Completion]]:
        """Return what has ended by now, without sleeping; the work is per response, never per token."""
        self._run_until_now()
        ended, self._ended = self._ended, {}
        return list(ended.items())

    def next_end_s(self) -> float:
        """Return real seconds until the next response ends, if nothing is submitted before that."""
        if self._ended or not self._ends:
            return 0.0
        tokens = self._ends[0][0] - self._decoded
        modeled = self._reading_s + tokens * self.latency.seconds_per_token(len(self._running))
        return max(0.0, self._now + modeled - self.clock.now()) / self.clock.speed

    def abort(self, keys: Collection[int]) -> None:
        """Forget these requests."""
        self._run_until_now()
        for key in keys:
            for place in (self._waiting, self._running, self._ended):
                place.pop(key, None)

    def load_weights(self, weights: Any, version: int) -> None:
        """Remember the version; cached prompts are of the old weights."""
        self.weights_version = version
        self._cached_prompts.clear()

    def _run_until_now(self) -> None:
        until = self.clock.now()
        while True:
            self._admit()
            while self._ends and self._running.get(self._ends[0][2]) != self._ends[0][1]:
                heapq.heappop(self._ends)
            if not self._running:
                self._now = max(self._now, until)
                return
            if not self._pass_time(until):
                return
            _, _, key, completion = heapq.heappop(self._ends)
            del self._running[key]
            self._ended[key] = completion

    def _admit(self) -> None:
        while self._queue and len(self._running) < self.max_num_seqs:
            request = self._waiting.pop(key := self._queue.popleft(), None)
            if request is None:  # aborted
                continue
            prompt = zlib.crc32(request.tokens.tobytes())
            length, truncated = self.lengths.sample(prompt, request.seed, request.sampling.max_response_tokens)
            if prompt not in self._cached_prompts:
                self._cached_prompts.add(prompt)
                rate = self.latency.prefill_tokens_per_s
                self._reading_s += self.latency.slowdown * len(request.tokens) / rate
            ticket = self._running[key] = next(self._tickets)
            completion = self._completion(request.seed, length, truncated)
            heapq.heappush(self._ends, (self._decoded + length, ticket, key, completion))

    def _pass_time(self, until: float) -> bool:
        """Advance time to the next response's end, if that comes before `until`; return whether it did."""
        batch = len(self._running)
        reading = min(self._reading_s, max(0.0, until - self._now))
        self._reading_s -= reading
        per_token = self.latency.seconds_per_token(batch)
        left = max(0.0, until - self._now - reading)
        due = (self._ends[0][0] - self._decoded) * per_token
        ends = self._reading_s <= 0.0 and due <= left
        decoding = due if ends else left if self._reading_s <= 0.0 else 0.0
        self._decoded = self._ends[0][0] if ends else self._decoded + decoding / per_token
        self._now += reading + decoding
        self.usage.busy_s += reading + decoding
        self.usage.sequence_s += (reading + decoding) * batch
        self.usage.tokens += decoding / per_token * batch
        return ends

    def _completion(self, seed: int, length: int, truncated: bool) -> Completion:
        start = seed % (POOL_TOKENS - length)
        cut = slice(start, start + length)
        return Completion(
            self._tokens[cut], self._logprobs[cut], FinishReason.LENGTH if truncated else FinishReason.STOP
        )


_pool: list[tuple[np.ndarray, np.ndarray]] = []


def _response_pool() -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (ids 10 to 39, which every vocabulary has) and log-probs, the same for all engines of a process."""
    if not _pool:
        rng = np.random.default_rng(0)
        tokens = rng.integers(10, 40, size=POOL_TOKENS, dtype=np.int32)
        _pool.append((tokens, -rng.random(POOL_TOKENS, dtype=np.float32)))
    return _pool[0]


def _standard_normal(number: int) -> float:
    """Draw a standard normal number as a function of an integer (splitmix64, then the normal quantile)."""
    z = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    z ^= z >> 31
    return _NORMAL.inv_cdf(((z >> 11) + 0.5) / (1 << 53))
