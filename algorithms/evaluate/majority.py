"""maj@k: is the answer that most samples agree on the right one?"""

from collections import Counter
from collections.abc import Sequence

from r3env.grading.normalisation import clean, comparable


def majority_correct(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """The chance that the most frequent answer is right, where ties are broken at random.

    Right answers count as one, however they are written, for they all equal the reference; wrong ones are the same
    where they are written alike, up to spaces and the like. Samples without an answer have no vote.

    Args:
        answers: the final answer of each sample; None where there is none.
        correct: whether it is right.

    Raises:
        ValueError: unlike lengths.

    Source: Wang et al., arXiv 2203.11171.
    """
    right = "right"
    votes = Counter(
        (right, "") if is_right else ("wrong", comparable(clean(answer or "")))
        for answer, is_right in zip(answers, correct, strict=True)
        if is_right or answer is not None
    )
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [vote for vote, count in votes.items() if count == most]
    return sum(kind == right for kind, _ in winners) / len(winners)
