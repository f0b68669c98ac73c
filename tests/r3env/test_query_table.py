"""Queries on disk, and one copy of them for all environments of a process."""

import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import r3env.envs.math
from r3env.core import Query
from r3env.data.loading import load_table
from r3env.data.query_table import QueryTable
from r3env.data.sources import DataError, Source
from r3env.envs.math import MATH_INSTRUCTION, MathEnv

texts = st.text(max_size=20) | st.text(st.characters(categories=["Cs"]), max_size=3)


@given(st.lists(st.builds(Query, texts, texts, texts, texts), unique_by=lambda query: query.uid))
def test_a_table_holds_what_was_added(queries: list[Query]) -> None:
    table = QueryTable.from_queries(queries)
    assert list(table) == [query.uid for query in queries]
    assert list(table.values()) == queries
    assert all(table[query.uid] == query for query in queries)
    assert len(table) == len(queries)
    assert "no such uid" * 3 not in table


def test_a_known_uid_is_not_added_again() -> None:
    table = QueryTable()
    first = Query("a", "p", "1")
    assert table.add(first, 7) is None
    assert table.add(Query("a", "other", "2"), 8) == (first, 7)
    assert list(table.values()) == [first]


def test_many_queries_are_found_again_from_many_threads() -> None:
    queries = [Query(f"uid {number}", f"problem {number}", str(number)) for number in range(5000)]
    table = QueryTable.from_queries(queries)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda query: table[query.uid], queries)) == queries
    assert list(pickle.loads(pickle.dumps(table)).values()) == queries
    assert list(copy.deepcopy(table).values()) == queries


def test_a_forked_process_reads_the_same_table() -> None:
    table = QueryTable.from_queries(Query(str(number), "p", str(number)) for number in range(100))
    child = os.fork()
    if child == 0:
        os._exit(0 if [query.answer for query in table.values()] == [str(number) for number in range(100)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table["99"].answer == "99"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"problem": f"p{i}", "answer": str(i)}) + "\n" for i in range(200)))
    return path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    def counting(source: Source, selection: object) -> object:
        seen.append(source.name)
        time.sleep(0.05)  # long enough that the others come while it loads
        return load_table(source, selection)  # type: ignore[arg-type]

    monkeypatch.setattr(r3env.envs.math, "load_table", counting)
    return seen


def test_many_environments_read_their_problems_once(problems: Path, loads: list[str]) -> None:
    environments = [MathEnv(str(problems)) for _ in range(128)]
    with ThreadPoolExecutor(16) as threads:
        uids = list(threads.map(lambda env: env.uids, environments))
    assert loads == [str(problems)]
    assert all(listed == uids[0] for listed in uids)
    assert len({id(env.queries) for env in environments}) == 1


def test_environments_that_want_other_problems_do_not_share(problems: Path, loads: list[str]) -> None:
    short = len(MATH_INSTRUCTION) + len("\n\np9")
    kinds: list[dict[str, Any]] = [
        {},
        {"limit": 5},
        {"max_prompt_length": short},
        {"max_prompt_length": short, "instruction": MATH_INSTRUCTION[1:]},
        {"columns": {"level": "answer"}},
    ]
    environments = [MathEnv(str(problems), **kind) for kind in kinds]
    assert [len(env.uids) for env in environments] == [200, 5, 10, 100, 200]
    assert len(loads) == len(kinds)


def test_a_file_that_was_written_again_is_read_again(problems: Path, loads: list[str]) -> None:
    before = MathEnv(str(problems))
    assert len(before.uids) == 200
    problems.write_text('{"problem": "new", "answer": "1"}\n')
    assert len(MathEnv(str(problems)).uids) == 1
    assert len(before.uids) == 200
    assert len(loads) == 2


def test_a_failed_load_is_tried_again(problems: Path, loads: list[str]) -> None:
    content = problems.read_text()
    problems.write_text("torn {")
    with pytest.raises(DataError):
        MathEnv(str(problems)).uids  # noqa: B018
    problems.write_text(content)
    assert len(MathEnv(str(problems)).uids) == 200


def test_a_fork_while_problems_are_loaded_does_not_hang(problems: Path, loads: list[str]) -> None:
    loader = threading.Thread(target=lambda: MathEnv(str(problems)).uids)
    loader.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if len(MathEnv(str(problems)).uids) == 200 else 1)
    loader.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


GROWTH = """
import sys, psutil
from r3env.envs.math import MathEnv
MathEnv("embedded:train").query("train-000")
before = psutil.Process().memory_info().rss
queries = MathEnv(sys.argv[1]).queries
print(len(queries), (psutil.Process().memory_info().rss - before) / 2**20)
"""


def test_memory_grows_by_an_index_only(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    rows = 100_000
    with path.open("w") as file:
        padding = "x" * 300
        file.writelines(f'{{"problem": "{number} {padding}", "answer": "{number}"}}\n' for number in range(rows))
    command = [sys.executable, "-c", GROWTH, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, growth_mib = done.stdout.split()
    assert int(count) == rows
    assert path.stat().st_size > 32 * 2**20
    # Two or three times the file in objects, if it were held; an index takes about 5 MiB.
    assert float(growth_mib) < 16
