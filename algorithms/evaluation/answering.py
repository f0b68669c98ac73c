"""Ask every problem several times, part by part, and keep what came back."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from algorithms.evaluation.responses import Response, ResponseFolder
from algorithms.evaluation.sampling import failed_attempt
from algorithms.rollout.attempts import AttemptTruncator
from algorithms.rollout.scheduler import OnProgress
from algorithms.rollout.types import Context, Prompt, Request, Rollout, Sampling, Split, refuse_if_all_failed
from r3env.grading.extraction import final_answer

Play = Callable[[Sequence[Request], OnProgress | None], list[Rollout]]


def part_size(samples: int, max_num_seqs: int, num_env_runners: int) -> int:
    """Problems of a part, some eight batches of an engine: what an interruption can cost."""
    return max(1, 8 * max_num_seqs * max(1, num_env_runners) // samples)


def parts(uids: Sequence[str], size: int) -> list[list[str]]:
    """Cut the problems into parts."""
    return [list(uids[start : start + size]) for start in range(0, len(uids), size)]


def answer_all(
    play: Play,
    environment: Any,
    cut: Sequence[Sequence[str]],
    folder: ResponseFolder,
    *,
    samples: int,
    sampling: Sampling,
    truncator: AttemptTruncator | None,
    seed: str,
    on_progress: OnProgress,
) -> None:
    """Play the parts that `folder` does not have yet.

    The seeds of a problem's answers depend on `seed` and its uid alone, not on the other problems or on interruptions.

    Args:
        play: plays requests, in the order of their ids.
        environment: a mixture whose parts are the benchmarks; gives levels.
        cut: uids by part, see `parts`.
        folder: what was answered before, and where more is written.
        samples: answers a problem.
        sampling: how they are drawn.
        truncator: of wrong answers, which get a second try, told that they were wrong; None: there are no second tries.
        seed: of everything.
        on_progress: told how many answers of the parts that were missing are there: a rate counts no old ones. Second
            tries come on top when it is known how many there are.

    Raises:
        EveryEpisodeFailed: the environment failed in all episodes of a part; that part is asked again next time.
    """
    missing = [(number, uids) for number, uids in enumerate(cut) if not folder.has(number)]
    counted = _Counted(play, on_progress, sum(len(uids) for _, uids in missing) * samples)
    for number, uids in missing:
        requests = _requests(uids, samples, sampling, seed)
        rollouts = counted.rollout(requests)
        refuse_if_all_failed(rollouts)
        again = None if truncator is None else _second_tries(counted, requests, rollouts, truncator)
        folder.write(number, _responses(requests, rollouts, again, environment, samples))


class _Counted:
    """Plays requests and tells how many of all are done."""

    def __init__(self, play: Play, on_progress: OnProgress, total: int) -> None:
        self._play, self._tell, self._done, self.total = play, on_progress, 0, total

    def rollout(self, requests: Sequence[Request]) -> list[Rollout]:
        before = self._done
        rollouts = self._play(requests, lambda count, _: self._tell(before + count, self.total))
        self._done += len(requests)
        self._tell(self._done, self.total)
        return rollouts


def _requests(uids: Sequence[str], samples: int, sampling: Sampling, seed: str) -> list[Request]:
    return [
        Request(
            index * samples + sample,
            Prompt(uid),
            index,
            _seed(seed, uid, sample),
            sampling,
            Split.EVALUATION,
        )
        for index, uid in enumerate(uids)
        for sample in range(samples)
    ]


def _seed(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _second_tries(
    counted: _Counted, requests: Sequence[Request], rollouts: Sequence[Rollout], truncator: AttemptTruncator
) -> dict[int, Rollout]:
    """By request id, the second turn after a wrong first one."""
    failed = [i for i, rollout in enumerate(rollouts) if not rollout.correct and rollout.error is None]
    again = [
        replace(requests[i], seed=_seed(requests[i].seed, "again"), prompt=Prompt(requests[i].uid, Context.REFLECTION, failed_attempt(rollouts[i], truncator)))
        for i in failed
    ]
    counted.total += len(again)
    return {rollout.request_id: rollout for rollout in counted.rollout(again)} if again else {}


def _responses(
    requests: Sequence[Request],
    rollouts: Sequence[Rollout],
    again: dict[int, Rollout] | None,
    environment: Any,
    samples: int,
) -> list[Response]:
    queries = environment.unwrapped.queries
    responses = []
    for request, rollout in zip(requests, rollouts, strict=True):
        benchmark, _, uid = request.uid.partition("/")
        second = again.get(request.id) if again is not None else None
        text = rollout.messages[-1]["content"] if rollout.response_length else ""
        responses.append(
            Response(
                benchmark=benchmark,
                uid=uid,
                level=queries[request.uid].level or None,
                sample=request.id % samples,
                prompt="\n\n".join(message["content"] for message in rollout.messages if message["role"] == "user"),
                response=text,
                answer=final_answer(text),
                correct=rollout.correct,
                truncated=rollout.truncated,
                verdict=rollout.verdict,
                tokens=rollout.response_length,
                reflected_response=second.messages[-1]["content"] if second else None,
                reflected_correct=None if again is None else rollout.correct or bool(second and second.correct),
            )
        )
    return responses
