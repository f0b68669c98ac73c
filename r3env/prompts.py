"""The texts that environments put into user turns."""

MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."

# The tags are those of reasoning-gym's own prompts: its answers may be grids or lists of several lines.
TAGGED_INSTRUCTION = (
    "Please reason step by step, and put your final answer, and nothing else, between <answer> and </answer>, in "
    "exactly the format that the problem asks for."
)

_REFLECTION = """\
The answer above is not correct. Before you answer again, work through these steps:
1. Locate the mistake: name the first step of the attempt that does not hold, or what it left unfinished.
2. Explain it: say why it fails, for example a condition misread, a formula misapplied, a slip in the \
arithmetic, an assumption without grounds.
3. Solve the problem afresh, from the beginning, in a way that avoids this mistake.
4. Check the new result against every condition of the problem.
"""

REFLECTION_GUIDANCE = _REFLECTION + "Put your final answer within \\boxed{}."

TAGGED_REFLECTION_GUIDANCE = _REFLECTION + "Put your final answer between <answer> and </answer>."
