"""An engine that cannot start in an actor's process ends the command in one line."""

import pytest

from .conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def test_what_vllm_refuses_in_an_actor_is_one_line_with_the_fix(run_command, tmp_path):
    wrong = ["env_runners.engine=vllm", "env_runners.vllm={quantization: nonsense}"]
    done = run_command(*SMALL, *wrong, "env_runners.num_env_runners=1", f"run.dir={tmp_path}")
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()
    assert last.startswith("error: env_runners.engine: vLLM did not start: Value error, Unknown quantization method")
    assert "; fix: correct env_runners.vllm" in last
    # Before it there is nothing but what every start prints.
    assert [line for line in before if not line.startswith(("run directory: ", "starting  ", "note: "))] == []
