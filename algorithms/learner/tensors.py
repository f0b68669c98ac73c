"""What goes in and out of a learner: named tensors, whole, whatever it holds of them itself."""

from collections.abc import Iterator
from typing import Any, Literal

import torch

from algorithms.learner import weights
from algorithms.learner.optimizer_state import optimizer_tensors, put_optimizer_tensors

Kind = Literal["weights", "adapter", "optimizer"]


class LearnerTensors:
    """The part of a learner that hands out weights and optimizer state, and takes them back.

    With shards every tensor is gathered from all learners: each of these methods that gives tensors has to run on all.
    """

    _learner_index: int
    _outgoing: Iterator[dict[str, torch.Tensor]] = iter(())
    # The open generator of the weight transfer, which keeps its place here between calls.
    weight_sender: Any = None

    @property
    def lm(self) -> Any:
        """The Hugging Face model."""
        raise NotImplementedError

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The policy's optimizer."""
        raise NotImplementedError

    def policy_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and whole shapes of the weights that engines take, in the order of `policy_tensors`; no gathering."""
        return weights.full_shapes(self.lm)

    def policy_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights that engines take, see `algorithms.learner.weights.full_weights`."""
        return weights.full_weights(self.lm)

    def open_buckets(self, kind: Kind, most_bytes: int) -> None:
        """Begin to hand out tensors by `next_bucket`; every learner has to.

        Args:
            kind: the merged weights, the adapter's, or the optimizer's moments.
            most_bytes: size of a bucket.
        """
        tensors = {
            "weights": self.policy_tensors,
            "adapter": lambda: weights.adapter_weights(self.lm),
            "optimizer": lambda: optimizer_tensors(self.lm, self.optimizer),
        }[kind]()
        self._outgoing = weights.buckets(tensors, most_bytes)

    def next_bucket(self) -> dict[str, torch.Tensor] | None:
        """The next tensors on the CPU, from the first learner; others gather with it and give an empty dict.

        Returns:
            None when there are no more.
        """
        bucket = next(self._outgoing, None)
        if bucket is None:
            return None
        if self._learner_index:
            return {}
        return {name: tensor.cpu().clone() for name, tensor in bucket.items()}

    def weight_names(self, kind: Kind) -> set[str]:
        """The names of all weights, or of the adapter's."""
        return weights.adapter_names(self.lm) if kind == "adapter" else set(self.lm.state_dict())

    def put_bucket(self, kind: Kind, tensors: dict[str, torch.Tensor]) -> None:
        """Put back tensors that `next_bucket` gave; each learner keeps its part.

        Raises:
            ValueError: a name or a shape that the model does not have.
        """
        if kind == "weights":
            weights.put_weights(self.lm, tensors)
        elif kind == "adapter":
            weights.put_adapter_weights(self.lm, tensors)
        else:
            put_optimizer_tensors(self.lm, self.optimizer, tensors)
