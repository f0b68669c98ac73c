"""What describes a model beside its weights, for the checkpoints that a run writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from transformers import AutoConfig, GenerationConfig

from algorithms.models.names import resolve_model

if TYPE_CHECKING:
    from algorithms.configuration.machine_settings import RLModuleSettings


@dataclass(frozen=True)
class ModelConfigs:
    """Read when a run starts: days later the model's folder or its page may be gone, or hold something else.

    Args:
        model: transformers' configuration of the model.
        generation: of its generation; not every model has one.
    """

    model: Any
    generation: Any | None

    @classmethod
    def read(cls, settings: "RLModuleSettings") -> Self:
        """Read them from where the model comes from; raises OSError when there is none at `rl_module.model`."""
        source = resolve_model(settings.model)
        model = AutoConfig.from_pretrained(
            source, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
        try:
            return cls(model, GenerationConfig.from_pretrained(source, revision=settings.revision or "main"))
        except OSError:
            return cls(model, None)

    def save(self, folder: Path) -> None:
        """Write them beside weights in float32."""
        self.model.dtype = "float32"
        self.model.save_pretrained(folder)
        if self.generation is not None:
            # Its save_pretrained refuses what many a model comes with, such as a temperature without do_sample.
            self.generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])
