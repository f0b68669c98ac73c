"""The texts that environments put into user turns."""

MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."

REFLECTION_GUIDANCE = """\
The answer above is not correct. Before you answer again, work through these steps:
1. Locate the mistake: name the first step of the attempt that does not hold, or what it left unfinished.
2. Explain it: say why it fails, for example a condition misread, a formula misapplied, a slip in the \
arithmetic, an assumption without grounds.
3. Solve the problem afresh, from the beginning, in a way that avoids this mistake.
4. Check the new result against every condition of the problem.
Put your final answer within \\boxed{}."""
