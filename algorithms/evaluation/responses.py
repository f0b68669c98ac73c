"""Store every response of an evaluation, in Parquet files from which an interrupted one resumes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from algorithms.utils.files import write_parquet
from r3env.core import UNTRUSTED

_SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("uid", pa.string()),
        ("level", pa.string()),
        ("sample", pa.int32()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("truncated", pa.bool_()),
        ("verdict", pa.string()),
        ("tokens", pa.int32()),
        ("reflected_response", pa.string()),
        ("reflected_correct", pa.bool_()),
        ("asked_logprob", pa.float64()),
    ]
)


# Verdicts of answers that nothing is known of: their environment, agent or grading failed. They count as incorrect.
UNGRADED = (*UNTRUSTED, "environment_error")


@dataclass(frozen=True)
class Response:
    """One sampled answer to one problem.

    Args:
        uid: the problem, without its benchmark's name.
        level: its difficulty, where the data have one.
        sample: which of the problem's answers.
        answer: the final answer in it, as its environment read it; None where there is none.
        verdict: the grader's reason; `timeout` and the like count as incorrect.
        reflected_response: the second try after a wrong one; None where there was none.
        reflected_correct: correct at first or on the second try.
        asked_logprob: of the token that stands for confidence behind the answer; None: not asked, or not finished.
    """

    benchmark: str
    uid: str
    level: str | None
    sample: int
    prompt: str
    response: str
    answer: str | None
    correct: bool
    truncated: bool
    verdict: str
    tokens: int
    reflected_response: str | None = None
    reflected_correct: bool | None = None
    asked_logprob: float | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing is known of the answer."""
        return self.verdict in UNGRADED


_AGAIN = "fix: delete it and evaluate again"
_KNOWN = ("benchmark", "uid", "sample", "response", "correct", "truncated", "verdict", "tokens")  # of each response


def _read(file: Path) -> list[Response]:
    try:
        rows = pq.read_table(file, schema=_SCHEMA, page_checksum_verification=True).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file}: cannot be read ({error}); {_AGAIN}") from error
    if any(row[name] is None for row in rows for name in _KNOWN):
        raise ValueError(f"{file}: cannot be read (a response lacks what each has); {_AGAIN}")
    return [Response(**row) for row in rows]


class ResponseFolder:
    """`responses/part-000000.parquet`, …: each part is complete or absent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, part: int) -> bool:
        """Return whether a part exists."""
        return self._file(part).is_file()

    def read_part(self, part: int) -> list[Response]:
        """Return the responses of a part.

        Raises:
            ValueError: it is damaged.
        """
        return _read(self._file(part))

    def write(self, part: int, responses: Iterable[Response]) -> None:
        """Write a part."""
        write_parquet(self._file(part), map(asdict, responses), _SCHEMA)

    def read(self, asked: Sequence[Sequence[str]] | None = None, samples: int = 0) -> list[Response]:
        """Return all responses, part by part.

        Args:
            asked: the problems of each part, with their benchmarks' names; None: they are not compared.
            samples: of each problem.

        Raises:
            ValueError: there are none, or a file is damaged, or has answers to other problems.
        """
        files: Sequence[Path] = sorted(self.path.glob("part-*.parquet"))
        if not files:
            raise ValueError(f"{self.path}: there are no responses")
        responses: list[Response] = []
        for file in files:
            found = _read(file)
            if asked is not None:
                part = {self._file(number): uids for number, uids in enumerate(asked)}.get(file, ())
                if Counter(f"{one.benchmark}/{one.uid}" for one in found) != Counter({uid: samples for uid in part}):
                    raise ValueError(f"{file}: holds other answers than these; {_AGAIN}")
            responses += found
        return responses

    def _file(self, part: int) -> Path:
        return self.path / f"part-{part:06d}.parquet"
