"""Text environments with verifiable rewards, and what they need: data, chat turns, grading.

Importing this package registers `r3env/Math-v0` with Gymnasium and imports neither Ray, vLLM nor torch.
"""

import gymnasium

MATH_ID = "r3env/Math-v0"

# The entry point is a string, so that the environment's module is imported only when one is made. The check
# keeps a reloaded module from Gymnasium's "overriding environment" warning.
if MATH_ID not in gymnasium.registry:
    gymnasium.register(id=MATH_ID, entry_point="r3env.math_env:MathEnv")
