"""MDPO: mirror descent, which pays for the distance from the step's first policy instead of clipping ratios."""

from algorithms.grpo.mechanism import Mechanism, Settings, StepBatch, setting, term


class MdpoSettings(Settings):
    """Penalize the divergence from the policy at the step's start."""

    enabled: bool = setting(True, "Whether to penalize it.")
    step_size: float = setting(
        1.0, "Step size of mirror descent (t) in the first step: a nat of divergence costs 1/t.", gt=0
    )
    anneal: bool = setting(True, "Whether the step size falls linearly, to its last K-th part in step K of the run.")


class Mdpo(Mechanism):
    """Maximizes `r·A - KL(π ‖ π_old) / t_k`, π_old the policy at the step's start, over several optimizer steps.

    `t_k = step_size · (1 - k/K)`, k from 0 to K - 1, K the steps of the run: later steps stay closer. Without a planned
    end t stays. The preset takes the clip away. Replayed responses, whose π_old is that of another step, have no such
    term.

    Source: arXiv 2005.09814; the authors' code, which takes 5 optimizer steps over all data with a KL in closed form
    (`losses/proximity.py` has the estimate that stands for it), standardizes advantages over the batch, and starts
    with t = 1 + 1/K.
    """

    section = "mdpo"
    settings_class = MdpoSettings
    tags = {"mdpo/step_size": 0.0}
    settings: MdpoSettings

    def before_update(self, batch: StepBatch) -> None:
        """Give the step's fresh samples the term."""
        config, left = self.services.config, 1.0
        steps = config.measured.run_steps or config.schedule_steps
        if self.settings.anneal and steps is not None:
            left = max(1.0 - batch.step / steps, 1.0 / steps)
        self.metrics["mdpo/step_size"] = self.settings.step_size * left
        for sample in (sample for group in batch.groups for sample in group.trained):
            sample.terms[term("proximity")] = 1.0 / self.metrics["mdpo/step_size"]
