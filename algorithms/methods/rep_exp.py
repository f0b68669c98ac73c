"""RepExp: pay a response for being unlike its group in the first model's hidden states."""

import numpy as np

from algorithms.grpo.mechanism import Group, Mechanism, Services, Settings, StepBatch, setting


class RepExpSettings(Settings):
    """Add a bonus for novel representations."""

    enabled: bool = setting(True, "Whether to pay the bonus.")
    coefficient: float = setting(0.01, "Reward per unit of the bonus (β).", ge=0)
    regularization: float = setting(0.01, "Added to the diagonal of the covariance (λ).", gt=0)
    dimensions: int = setting(512, "Dimensions that hidden states are projected to; the authors have 32 to 512.", ge=1)


class RepExp(Mechanism):
    """Adds `β · hᵢᵀ (λI + Σ_{j≠i} hⱼhⱼᵀ)⁻¹ hᵢ` to the rewards of a group that has a correct response.

    h is the mean of the last hidden states under the model that the run began with, at the positions that predict the
    response's tokens, times a sparse random matrix, drawn anew each step, less the group's mean. A group that is all
    correct then has something to teach, and dynamic sampling keeps it.

    Source: arXiv 2510.11686; the authors' code (leave-one-out, no bonus where none is correct), whose positions are
    those of the tokens themselves. Left out: normalized bonuses, and covariances that are kept over epochs.
    """

    section = "rep_exp"
    settings_class = RepExpSettings
    tags = {"rep_exp/bonus": 0.0, "rep_exp/groups": 0.0}
    uses_reference = True
    settings: RepExpSettings

    def __init__(self, settings: RepExpSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.states: dict[int, np.ndarray] = {}  # projected, of the step's responses, by their id
        self.paid: list[float] = []

    def is_informative(self, group: Group) -> bool:
        """Return whether it may pay some of the group more than others."""
        return len(group.samples) > 1 and group.any_correct

    def before_rewards(self, batch: StepBatch) -> None:
        """Measure the responses of groups that get a bonus, and project them."""
        groups = [group for group in batch.groups if group.any_correct]
        samples = [sample for group in groups for sample in group.samples if sample.rollout.response_length]
        found = self.services.score_under(samples, "reference", "mean_states") if samples else []
        rng, self.paid = self.services.rng(self.section, batch.step), []
        matrix = sparse_projection(len(found[0]), self.settings.dimensions, rng) if found else np.zeros((0, 0))
        pairs = zip(samples, found, strict=True)
        self.states = {id(sample): states.astype(np.float64) @ matrix for sample, states in pairs}

    def rewards(self, group: Group) -> None:
        """Add the bonus."""
        there = [sample for sample in group.samples if id(sample) in self.states and sample.is_finite]
        states = np.array([self.states[id(sample)] for sample in there])
        if not there or not np.isfinite(states).all():
            return
        for sample, bonus in zip(there, elliptic_bonuses(states, self.settings.regularization), strict=True):
            paid = sample.reward if sample.shaped_reward is None else sample.shaped_reward
            sample.shaped_reward = float(paid + self.settings.coefficient * bonus)
            self.paid.append(float(bonus))
        self.metrics["rep_exp/groups"] += 1.0
        self.metrics["rep_exp/bonus"] = float(np.mean(self.paid))


def sparse_projection(dimensions: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a sparse random projection: float64 [dimensions, wanted].

    An entry is `±sqrt(√D / wanted)` with probability `1/√D`, D `dimensions`, and else 0, so that lengths are kept in
    expectation.

    Source: Li, Hastie, Church, "Very sparse random projections", 2006, as in scikit-learn.
    """
    density = 1.0 / np.sqrt(dimensions)
    signs = rng.choice([-1.0, 0.0, 1.0], (dimensions, wanted), p=[density / 2, 1.0 - density, density / 2])
    return signs / np.sqrt(density * wanted)


def elliptic_bonuses(states: np.ndarray, regularization: float) -> np.ndarray:
    """Return how much of each state, float64 [G, D], the others of the group do not explain: float64 [G].

    `hᵀ (λI + HᵀH)⁻¹ h = (hᵀh - hᵀHᵀ (λI + HHᵀ)⁻¹ Hh) / λ`, H the others: matrices of the group's size alone.
    """
    centered = states - states.mean(axis=0)
    products = centered @ centered.T
    bonuses = np.zeros(len(states))
    for place, own in enumerate(products):
        others = np.arange(len(states)) != place
        among = products[np.ix_(others, others)] + regularization * np.eye(len(states) - 1)
        bonuses[place] = (own[place] - own[others] @ np.linalg.solve(among, own[others])) / regularization
    return bonuses
