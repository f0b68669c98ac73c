"""While a run is built, compiled code is silent and warnings are not."""

import subprocess
import sys

SCRIPT = """
import logging, os, sys
from algorithms.utils.process import native_stderr_held_back
if {configured}:
    logging.basicConfig(format="%(message)s")
with native_stderr_held_back() as shown:
    os.write(2, b"native noise\\n")
    logging.getLogger("algorithms.x").info("unimportant")
    logging.getLogger("algorithms.x").warning("weights go through the object store")
    print("starting", file=shown)
    {end}
logging.getLogger("algorithms.x").warning("afterwards")
os.write(2, b"native words\\n")
"""


def standard_error(end="pass", configured=False):
    script = SCRIPT.format(end=end, configured=configured)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300).stderr


def test_warnings_are_seen_while_compiled_code_is_held_back():
    for configured in (False, True):
        lines = standard_error(configured=configured).splitlines()
        assert lines == ["weights go through the object store", "starting", "afterwards", "native words"], configured


def test_a_failure_shows_what_compiled_code_had_to_say():
    said = standard_error(end="raise SystemExit('it failed')")
    assert said.splitlines() == ["weights go through the object store", "starting", "native noise", "it failed"]
