"""Tell when the engines' log-probs are not the learners'. Pure."""

# |log-prob(engine) - log-prob(learner)| that rounding explains: both in float32, or one of them in fewer bits.
EXACT, ROUNDED = 1e-2, 1.0


class MismatchWatch:
    """Warns once when `policy/logp_mismatch_max` is larger than rounding explains.

    Args:
        threshold: from which on to warn; None: what the types explain.
        dtypes: that engine and learner compute in.
    """

    def __init__(self, threshold: float | None, dtypes: tuple[str, str]) -> None:
        exact = set(dtypes) == {"float32"}
        self.threshold = (EXACT if exact else ROUNDED) if threshold is None else threshold
        self._told = False

    def observe(self, mismatch: float, policy_lag: float) -> str | None:
        """Take in a step's largest difference; returns the warning when it is due.

        A policy that lags differs from the learners' on purpose, so such a step says nothing.
        """
        if self._told or policy_lag or not mismatch > self.threshold:
            return None
        self._told = True
        return (
            f"policy/logp_mismatch_max is {mismatch:.3g}, above {self.threshold:g}: engines sample with another policy "
            "than the learners train. Likely causes: env_runners.dtype differs from rl_module.dtype, top_p below 1, "
            "weights that did not reach the engine (a tied head, a stale cache), or kernels that round differently "
            "(see env_runners.logp_mismatch_warning)"
        )
