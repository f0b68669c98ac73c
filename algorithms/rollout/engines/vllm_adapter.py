"""A vLLM engine that keeps the model as it was loaded, and gets the adapter alone (vLLM's LoRA)."""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from algorithms.config.consistency import VLLM_LORA_RANKS
from algorithms.learner.model import add_adapter, save_adapter_config
from algorithms.learner.weights import adapter_shapes
from algorithms.models.causal_lm import empty_causal_lm, read_config
from algorithms.rollout.engines.vllm import VLLMEngine
from algorithms.rollout.engines.vllm_start import EngineDidNotStart
from algorithms.rollout.weight_sync.serialization import TENSORS

_NAME, _NUMBER = "policy", 1


class AdapterVLLMEngine(VLLMEngine):
    """vLLM with one adapter, whose weights are replaced in place; until the first ones come, there is none.

    Args:
        adapter: `rank`, `alpha` and `targets` of what will come, as `add_adapter` takes them.
        arguments: see `VLLMEngine`.

    Raises:
        EngineDidNotStart: as `VLLMEngine`, or vLLM would leave out a layer of the adapter; one line that names it.
    """

    def __init__(
        self, *, adapter: Mapping[str, Any], options: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        most = next(rank for rank in VLLM_LORA_RANKS if rank >= adapter["rank"])
        room = {"enable_lora": True, "max_loras": 1, "max_lora_rank": most}
        self._adapter, self._model = dict(adapter), arguments["model"]
        super().__init__(options=room | dict(options or {}), **arguments)
        self._incoming: dict[str, torch.Tensor] = {}
        self._require_computed(self._shapes)

    def shapes_of_weights(self, model: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
        """Names and shapes of the adapter's weights, as in peft's files."""
        lm = empty_causal_lm(read_config(model, revision, trust_remote_code), trust_remote_code)
        add_adapter(lm, **self._adapter)
        return adapter_shapes(lm)

    def start_update(self) -> None:
        """Drop what an update has left that broke off: vLLM has seen none of it."""
        self._incoming = {}

    def take(self, update: Mapping[str, Any]) -> None:
        """Keep tensors until all are there: they may be views that the next bucket overwrites."""
        self._incoming |= {name: tensor.cpu().clone() for name, tensor in update[TENSORS]}

    def finish_update(self, version: int) -> None:
        """Write the adapter where vLLM's workers, on this machine, read it; replace the one that they hold."""
        from vllm.lora.request import LoRARequest

        engine = self.llm.llm_engine
        with tempfile.TemporaryDirectory(prefix="r3-adapter-") as folder:
            save_adapter_config(Path(folder), model=self._model, revision=None, **self._adapter)
            save_file(self._incoming, Path(folder) / "adapter_model.safetensors")
            if not engine.add_lora(LoRARequest(_NAME, _NUMBER, folder, load_inplace=True)):
                raise RuntimeError("vLLM did not take the adapter")
        self._require_computed(self._incoming)
        engine.set_weight_version(str(version))
        # Without `load_inplace`, by which every request would read the files again: the workers hold it by its number.
        self.lora, self._incoming = LoRARequest(_NAME, _NUMBER, folder), {}

    def _require_computed(self, names: Iterable[str]) -> None:
        """Refuse an adapter of which vLLM leaves layers out: it ignores silently those that it has no place for."""
        left_out = sorted({name for part in self.llm.collective_rpc(_left_out, args=(list(names),)) for name in part})
        if left_out:
            raise EngineDidNotStart(
                f"env_runners.lora_weights: vLLM leaves {len(left_out)} layers of the adapter out, such as "
                f"{left_out[0]}; fix: env_runners.lora_weights=merged, or rl_module.lora_targets without them"
            )

    def sleep(self, level: int = 1) -> None:
        """Free the cache, and keep the weights in CPU memory: no update brings them back."""
        super().sleep(level=1)


def _left_out(worker: Any, names: list[str]) -> list[str]:
    """Return the layers of an adapter that a worker of vLLM's does not compute, by the names of the adapter's weights.

    They are those that it has no place for, and, once the adapter is there, those that it has not loaded.
    """
    from vllm.lora.utils import parse_fine_tuned_lora_name

    manager = worker.model_runner.lora_manager._adapter_manager
    mapper, adapter = getattr(manager.model, "hf_to_vllm_mapper", None), manager.get_adapter(_NUMBER)
    renames = mapper and mapper.get_rename_mapper()
    places = manager.modules if adapter is None else manager.modules.keys() & adapter.loras.keys()
    computed = {part for place in places for part in manager.packed_modules.get(place, [place])}  # fused: q, k and v
    return [layer for name in names if (layer := parse_fine_tuned_lora_name(name, renames)[0]) not in computed]
