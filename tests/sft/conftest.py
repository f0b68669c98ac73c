"""Worked solutions of the embedded problems, in files."""

import json
from pathlib import Path

import pytest

from r3env.data.loading import load_queries

BASE = [
    "rl_module.model=embedded:tiny",
    "rl_module.dtype=float32",
    "env_runners.engine=transformers",
    "env_runners.dtype=float32",
    "env_runners.max_response_tokens=48",
    "environment.instruction=''",
    "evaluation.data=embedded:heldout",
    "evaluation.samples=2",
    "evaluation.k=[1]",
    "evaluation.limit=12",
]


def solved(name: str = "solution") -> list[dict[str, str]]:
    """The embedded training problems with a long way to the answer, which the embedded model does not write."""
    return [
        {"problem": query.problem, "answer": query.answer, name: f"So: {query.problem} = {query.answer}"}
        for query in load_queries("embedded:train")
    ]


def write(file: Path, rows: list[dict[str, str]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "solved.jsonl", solved())
