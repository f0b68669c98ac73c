"""Sample problems part by part into a folder: an interrupted evaluation resumes at the first missing part."""

import hashlib
from collections.abc import Callable, Sequence

from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.sampling import Answer, Draw, Sampler
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.conversation import conversation, last_text
from algorithms.rollout.types import OnProgress, Request, Rollout, Sampling
from r3env.core import VerifiableEnv

ReportingRollout = Callable[[Sequence[Request], OnProgress | None], list[Rollout]]


def part_size(samples: int, max_num_seqs: int, num_env_runners: int) -> int:
    """Return how many problems make a part: some eight batches of an engine, the most that an interruption can cost."""
    return max(1, 8 * max_num_seqs * max(1, num_env_runners) // samples)


def parts(uids: Sequence[str], size: int) -> list[list[str]]:
    """Cut the problems into parts."""
    return [list(uids[start : start + size]) for start in range(0, len(uids), size)]


def sample_parts(
    rollout: ReportingRollout,
    environment: VerifiableEnv,
    cut: Sequence[Sequence[str]],
    folder: ResponseFolder,
    *,
    samples: int,
    sampling: Sampling,
    truncator: AttemptTruncator | None,
    seed: str,
    on_progress: OnProgress,
) -> None:
    """Sample the parts that `folder` does not have yet.

    The seeds of a problem's answers depend on `seed` and its uid alone, not on the other problems or on interruptions.

    Args:
        rollout: runs requests; rollouts come back in the order of their ids.
        environment: a mixture whose parts are the benchmarks; gives levels.
        cut: uids by part, see `parts`.
        folder: what was sampled before, and where more is written.
        samples: answers per problem.
        sampling: how they are sampled.
        truncator: of wrong answers, which get a second try; None: there are no second tries.
        seed: of everything.
        on_progress: called with how many answers of the missing parts are there: a rate counts no old ones. Second
            tries come on top when it is known how many there are.

    Raises:
        EpisodesFailed: all episodes of a part failed; that part is sampled again next time.
    """
    missing = [(number, uids) for number, uids in enumerate(cut) if not folder.has(number)]
    counted = _Counted(rollout, on_progress, sum(len(uids) for _, uids in missing) * samples)

    def seed_of(draw: Draw) -> int:
        first = _hash(seed, draw.uid, draw.sample)
        return _hash(first, "again") if draw.second else first

    sampler = Sampler(counted.rollout, samples, sampling, seed_of, truncator)
    for number, uids in missing:
        answers = sampler.sample(uids)
        folder.write(number, [_response(answer, environment) for problem in answers for answer in problem])


class _Counted:
    """Runs requests and reports how many of all are done."""

    def __init__(self, rollout: ReportingRollout, on_progress: OnProgress, total: int) -> None:
        self._rollout, self._report, self._done, self._total = rollout, on_progress, 0, total

    def rollout(self, requests: Sequence[Request]) -> list[Rollout]:
        self._total += sum(request.prompt.attempt is not None for request in requests)
        before = self._done
        rollouts = self._rollout(requests, lambda count, _: self._report(before + count, self._total))
        self._done += len(requests)
        self._report(self._done, self._total)
        return rollouts


def _hash(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _response(answer: Answer, environment: VerifiableEnv) -> Response:
    first, second = answer.first, answer.second
    benchmark, _, uid = first.uid.partition("/")
    text = last_text(first) if first.response_length else ""
    return Response(
        benchmark=benchmark,
        uid=uid,
        level=environment.queries[first.uid].level or None,
        sample=answer.sample,
        prompt="\n\n".join(message["content"] for message in conversation(first) if message["role"] == "user"),
        response=text,
        answer=first.answer,
        correct=first.correct,
        truncated=first.truncated,
        verdict=first.verdict,
        tokens=first.response_length,
        reflected_response=last_text(second) if second else None,
        reflected_correct=answer.reflected_correct,
        asked_logprob=first.asked_logprob,
    )
