"""Every call that may block has a limit, or says beside it why it cannot hang: `# waits: REASON`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A call of one of these names that has no limit; the number is the position of the limit among its arguments.
METHODS = {
    "acquire": 0,
    "communicate": 1,
    "exception": 0,
    "foreach_env_runner": None,
    "foreach_learner": None,
    "get": 0,
    "join": 0,
    "poll": 0,
    "recv": None,
    "recv_bytes": None,
    "recv_into": None,
    "result": 0,
    "wait": 0,
    "accept": None,
    "_internal_kv_del": None,
    "_internal_kv_get": None,
    "_internal_kv_list": None,
    "_internal_kv_put": None,
}
FUNCTIONS = {
    "ray.get": 1,
    "ray.wait": None,
    "wait": 1,
    "concurrent.futures.wait": 1,
    "futures.wait": 1,
    "connection.wait": 1,
    "select.select": 3,
    "subprocess.run": None,
    "subprocess.call": None,
    "subprocess.check_call": None,
    "subprocess.check_output": None,
    "os.wait": None,
    "os.waitid": None,
    "os.waitpid": None,
    "socket.create_connection": 1,
    "urlopen": None,
    "urllib.request.urlopen": None,
    "fcntl.flock": None,
    "asyncio.run": None,
    "ThreadPoolExecutor": None,  # as a context manager it waits for its threads
    "ProcessPoolExecutor": None,
}
LIMITS = {"timeout", "timeout_s", "timeout_seconds"}


def unlimited_calls(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each call that may block without a limit or a reason."""
    lines = source.splitlines()
    tree = ast.parse(source)
    own = {f"self.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}  # searched themselves
    managed = {id(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in own and _may_block(node, id(node) in managed):
            around = lines[max(0, node.lineno - 2) : node.end_lineno]
            if not any("# waits: " in line for line in around):
                yield node.lineno, ast.unparse(node)


def _may_block(call: ast.Call, managed: bool) -> bool:
    name = ast.unparse(call.func)
    if name.endswith("PoolExecutor"):
        return managed
    if name in FUNCTIONS:
        place = FUNCTIONS[name]
    elif isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        place = METHODS[call.func.attr]
    else:
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg in LIMITS | {"blocking"}]
    given += call.args[place : place + 1] if place is not None else []
    given += [argument for argument in call.args if re.search("WNOHANG|LOCK_NB", ast.unparse(argument))]
    return not any(not (isinstance(value, ast.Constant) and value.value is None) for value in given)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ray.get(answer)", True),
        ("ray.get(answer, timeout=5)", False),
        ("ray.wait(answers, num_returns=1, timeout=None)", True),
        ("ray.wait(answers, timeout=limit_s)", False),
        ("thread.join()", True),
        ("thread.join(5.0)", False),
        ("', '.join(words)", False),
        ("future.result()", True),
        ("event.wait()", True),
        ("lock.acquire()", True),
        ("lock.acquire(blocking=False)", False),
        ("pipe.recv_bytes()", True),
        ("queue.get()", True),
        ("settings.get('key')", False),
        ("subprocess.run(command, check=True)", True),
        ("subprocess.run(command, timeout=3)", False),
        ("os.waitpid(pid, 0)", True),
        ("os.waitpid(pid, os.WNOHANG)", False),
        ("with ThreadPoolExecutor(4) as pool: pass", True),
        ("future.result()  # waits: it is done", False),
        ("# waits: it is done\nfuture.result()", False),
        ("# waits: it is done\n\nfuture.result()", True),
    ],
)
def test_a_call_without_a_limit_or_a_reason_is_found(line, found):
    assert bool(list(unlimited_calls(line))) is found


def test_every_call_that_may_block_has_a_limit_or_a_reason():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for package in ("algorithms", "r3env")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in unlimited_calls(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
