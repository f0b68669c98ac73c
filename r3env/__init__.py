"""Text environments with verifiable rewards, and what they need: data, chat turns, grading.

Importing this package registers its environments with Gymnasium and imports neither Ray, vLLM nor torch.
"""

import gymnasium

MATH_ID = "r3env/Math-v0"
REASONING_GYM_ID = "r3env/ReasoningGym-v0"
MIXTURE_ID = "r3env/Mixture-v0"

# The entry points are strings, so that an environment's module is imported only when one is made. The check keeps a
# reloaded module from Gymnasium's "overriding environment" warning.
for _id, _entry_point in (
    (MATH_ID, "r3env.math_env:MathEnv"),
    (REASONING_GYM_ID, "r3env.reasoning_gym_env:ReasoningGymEnv"),
    (MIXTURE_ID, "r3env.mixture_env:MixtureEnv"),
):
    if _id not in gymnasium.registry:
        gymnasium.register(id=_id, entry_point=_entry_point)
