"""R³-GRPO (arXiv 2601.19620): GRPO with three mechanisms."""

from ray.rllib.algorithms.registry import ALGORITHMS

from algorithms.grpo.algorithm import GRPO
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.r3_grpo.ranking import Ranking
from algorithms.r3_grpo.reflection import Reflection
from algorithms.r3_grpo.replay import Replay


class R3GRPO(GRPO):
    """GRPO that also learns from groups in which every response fails, or every response succeeds.

    Algorithm 1 of the paper, and where each line runs: a stage of `GRPO.training_step`, and what of it does the work.

    ```
    for each step:
      sample a batch of queries                              collect_rollouts    EpochSampler.choose
      for each query whose history's mean is below τ:
        add the prompt [q; a stored failure; guidance]       collect_rollouts    Reflection.prompts
      G responses to each prompt from π_old; verify them     collect_rollouts    RolloutSource.next_batch
      reward: outcome × length bonus                         shape_rewards       GRPO.outcome_reward
      in groups without a correct response:
        measure the truncated ones' token entropies          score_tokens        Ranking.needs
        rank them by entropy structure                       shape_rewards       Ranking.rewards
      in groups all correct or all incorrect:
        add stored responses of the opposite outcome         compose_groups      Replay.compose
      A = (R - mean) / (α · max(std, floor) + λ)  (Eq. 1, 3) compute_advantages  StdAdvantage.advantages
        α of mixed groups                                    compute_advantages  Replay.normalize
        floor of groups that stayed without a correct member compute_advantages  Ranking.normalize
      one update of the clipped objective                    update_policy       GRPO.update_policy
        (before it: reflected successes, as plain answers)   update_policy       Reflection.before_update
      store the responses with their log-probs               update_history      GRPO.update_history
    ```

    Each mechanism has a switch; with all of them off, and `reward.length_bonus` 0, this is GRPO, bit for bit. Their
    order changes nothing.
    """

    config: R3GRPOConfig
    mechanisms = (Reflection, Ranking, Replay)

    @classmethod
    def get_default_config(cls) -> R3GRPOConfig:
        """Return R³-GRPO's configuration with its defaults."""
        return R3GRPOConfig()


ALGORITHMS["R3GRPO"] = lambda: (R3GRPO, R3GRPO.get_default_config())  # for `tune.run("R3GRPO")`
