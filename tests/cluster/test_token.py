"""A head asks for the token that an earlier run left in the user's home; a command that joins it shows the token."""

import subprocess
import sys

import pytest

from .ray_nodes import TOKEN, RayNode, surroundings, wait_for_nodes

pytestmark = pytest.mark.slow

JOIN = """
import ray
from algorithms.preflight.ray_session import start_ray
print(start_ray(None), len(ray.nodes()))
"""


@pytest.fixture
def variables(tmp_path):
    """A shell's environment in which nothing is said of tokens, and a home that has one."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(TOKEN["RAY_AUTH_TOKEN"])
    return {name: value for name, value in surroundings().items() if name not in TOKEN} | {"HOME": str(tmp_path)}


def test_a_command_shows_the_token_that_an_earlier_run_left(variables):
    node = RayNode(cpus=1, variables=variables)
    try:
        wait_for_nodes(node, 1, node)
        joined = subprocess.run(
            [sys.executable, "-c", JOIN],
            env=variables | {"RAY_ADDRESS": node.address},
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        node.stop()
    assert joined.stdout.split() == ["True", "1"], joined.stderr
