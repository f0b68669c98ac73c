"""Text environments with verifiable rewards, and what they need; `core.py` defines an environment.

Importing this package registers its environments with Gymnasium and imports neither Ray, vLLM nor torch.
"""

from r3env.registry import (
    AGENT_ID,
    CHOICE_ID,
    CONSTRAINTS_ID,
    FUNCTION_ID,
    MATH_ID,
    MIXTURE_ID,
    REASONING_GYM_ID,
    TOOLS_ID,
)

__all__ = [
    "AGENT_ID",
    "CHOICE_ID",
    "CONSTRAINTS_ID",
    "FUNCTION_ID",
    "MATH_ID",
    "MIXTURE_ID",
    "REASONING_GYM_ID",
    "TOOLS_ID",
]
