"""What code in the sandbox can and cannot do. Each attempt returns the error that stopped it."""

import contextlib
import os
import socket
import tempfile

import pytest

from examples import sandbox
from examples.sandbox import Ending, Limits, run_calls

QUICK = Limits(cpu_s=1, wall_s=30.0)


def attempt(statement, imports="os"):
    """What a statement does in the sandbox: the name of its error, or its value."""
    code = f"import {imports}\ndef f():\n    try:\n        return repr({statement})\n"
    code += "    except BaseException as error:\n        return [type(error).__name__, str(error)]"
    outcome = run_calls(code, "f", [[]], QUICK)
    assert outcome.ending is Ending.RETURNED, outcome
    return outcome.results[0]


def test_calls_in_order():
    assert run_calls("def f(a, b):\n    return a - b", "f", [[3, 1], [1, 3]]).results == (2, -2)


def test_what_the_code_prints_is_no_result():
    assert run_calls("print('[1]')\ndef f():\n    print(2)\n    return 3", "f", [[]]).results == (3,)


@pytest.mark.parametrize("code", ["def f(:", "g = 1", "raise ValueError", "def f():\n    return object()"])
def test_code_that_fails(code):
    assert run_calls(code, "f", [[]]).ending is Ending.FAILED


@pytest.mark.parametrize("statement", ["open('/etc/passwd').read()", "open('/tmp/made-in-sandbox', 'w')"])
def test_no_file_can_be_opened(statement):
    kind, message = attempt(statement)
    assert kind == "OSError" and "Too many open files" in message


def test_closing_a_file_does_not_make_room_for_another():
    kind, message = attempt("[os.close(0), open('/etc/passwd')]")
    assert kind == "OSError" and "Too many open files" in message


def test_no_module_beyond_the_loaded_ones():
    assert attempt("__import__('ctypes')")[0] in ("OSError", "ModuleNotFoundError", "ImportError")
    assert attempt("__import__('fractions').Fraction(1, 2)") == "Fraction(1, 2)"


@pytest.mark.parametrize(
    "statement",
    ["os.kill(os.getppid(), 9)", "os.remove('/tmp/nothing')", "os.rename('/tmp/a', '/tmp/b')", "os.system('true')"],
)
def test_calls_that_need_no_file_are_refused(statement):
    assert attempt(statement)[0] == "PermissionError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has more to lose than the user has")
def test_root_is_given_up():
    assert attempt("os.getresuid()") == "(65534, 65534, 65534)"


def test_no_process_and_no_thread():
    assert attempt("os.fork()")[0] in ("PermissionError", "BlockingIOError")
    assert attempt("_thread.start_new_thread(print, ())", "_thread")[0] == "RuntimeError"


@pytest.fixture
def listener():
    """A server of this test, on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server


def was_reached(server):
    with contextlib.suppress(TimeoutError):
        server.accept()[0].close()
        return True
    return False


def test_the_listener_hears_who_reaches_it(listener):
    assert not was_reached(listener)
    socket.create_connection(listener.getsockname(), timeout=5).close()
    assert was_reached(listener)


FILE_LIMIT = "(resource.RLIMIT_NOFILE, 0),"
HOOK = '"socket.", '
CONNECT = """
def f(host, port):
    try:
        import socket
        one = socket.socket()
        one.settimeout(5)
        one.connect((host, port))
        return "connected"
    except BaseException as error:
        return type(error).__name__ + ": " + str(error)
"""


def connect_without(fences, preloaded, listener, monkeypatch):
    """What the code gets from the attempt to connect, with some of the child's fences taken down."""
    child = ("import socket\n" if preloaded else "") + sandbox._CHILD
    for fence in fences:
        assert child.count(fence) == 1
        child = child.replace(fence, "")
    monkeypatch.setattr(sandbox, "_CHILD", child)
    outcome = run_calls(CONNECT, "f", [list(listener.getsockname())])
    assert outcome.ending is Ending.RETURNED, outcome
    return outcome.results[0]


@pytest.mark.parametrize(
    "preloaded, fences_down, error",
    [
        pytest.param(False, [], "ModuleNotFoundError", id="the module cannot be loaded"),
        pytest.param(True, [], "PermissionError: socket.", id="the audit hook refuses"),
        pytest.param(True, [HOOK], "OSError: [Errno 24]", id="no file is left for a socket"),
        pytest.param(True, [HOOK, FILE_LIMIT], "OSError: [Errno 101]", id="there is no network"),
    ],
)
def test_no_connection_gets_out_whichever_fence_holds_it(listener, monkeypatch, preloaded, fences_down, error):
    """The fences one after the other, those before it taken down: each is enough."""
    if FILE_LIMIT in fences_down and not sandbox._namespaces():
        pytest.skip("no right to make a network namespace")
    assert connect_without(fences_down, preloaded, listener, monkeypatch).startswith(error)
    assert not was_reached(listener)


def test_with_every_fence_down_the_same_attempt_arrives(listener, monkeypatch):
    """So it is the fences that stop it."""
    monkeypatch.setattr(sandbox, "_namespaces", lambda: ())
    assert connect_without([HOOK, FILE_LIMIT], True, listener, monkeypatch) == "connected"
    assert was_reached(listener)


def test_memory_is_limited():
    assert attempt("len(bytearray(10**10))")[0] == "MemoryError"


def test_limits_cannot_be_lifted():
    statement = "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))"
    assert attempt(statement, "sys; resource = sys.modules['resource']")[0] == "PermissionError"


def test_an_endless_loop_ends_with_its_cpu_time():
    limits = Limits(cpu_s=1, wall_s=60)
    assert run_calls("def f():\n    while True:\n        pass", "f", [[]], limits).ending is Ending.FAILED


def test_sleep_ends_with_the_wall_time():
    code = "import time\ndef f():\n    time.sleep(60)"
    assert run_calls(code, "f", [[]], Limits(wall_s=0.5)).ending is Ending.OVERTIME


def test_endless_output_ends_before_it_fills_the_disk(monkeypatch):
    code = "import os\ndef f():\n    while True:\n        os.write(1, b'x' * 65536)"
    with tempfile.TemporaryFile() as output:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda: contextlib.nullcontext(output))
        assert run_calls(code, "f", [[]], QUICK).ending is Ending.FAILED
        assert os.fstat(output.fileno()).st_size <= QUICK.output_bytes


def test_made_up_results_do_not_know_the_expected_ones():
    """The code may write what it likes: it was never told what is right."""
    code = "import os\ndef f(x):\n    os.write(1, b'[1]\\n' * 2)\n    os._exit(0)"
    assert run_calls(code, "f", [[1], [2]]).results == ([1], [1])
    too_deep = "import os\ndef f():\n    os.write(1, b'[' * 60000 + b'\\n')\n    os._exit(0)"
    assert run_calls(too_deep, "f", [[]]).ending is Ending.FAILED
