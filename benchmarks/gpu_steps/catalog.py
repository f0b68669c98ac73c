"""All steps, in the order in which they run: quick ones, and those that others build on, come first."""

from benchmarks.gpu_steps.step import Needs, Step

_HERE = "benchmarks.gpu_steps"
_RLLIB = ("ray", "gymnasium", "tree")
_VLLM = (*_RLLIB, "vllm")
_ONE_GPU = Needs(gpus=1, modules=_VLLM, gpu_gib=60)
_ANY = Needs(modules=_VLLM, gpu_gib=60)

MACHINE = Step("machine", "GPUs, driver, toolkit, libraries", f"{_HERE}.machine:describe")

STEPS: tuple[Step, ...] = (
    MACHINE,
    Step(
        "tests",
        "tests marked gpu",
        f"{_HERE}.learner:tests",
        Needs(gpus=1, modules=("pytest", "hypothesis", "ray")),
        limit_s=300,
    ),
    Step("ipc", "a CUDA IPC round trip of two processes", f"{_HERE}.ipc:round_trip", Needs(gpus=1), limit_s=120),
    Step(
        "learner",
        "log-probs, scoring and updates: memory and time",
        f"{_HERE}.learner:memory_and_time",
        Needs(gpu_gib=60),
        limit_s=300,
    ),
    Step("chunk", "the head's chunk, 384 against 2,048 tokens", f"{_HERE}.learner:chunks", limit_s=180),
    Step("adamw", "AdamW: foreach, fused, 8-bit moments", f"{_HERE}.learner:adamw", Needs(gpu_gib=50), limit_s=180),
    Step(
        "packing",
        "packed rows (flash attention) against padded ones, MFU",
        f"{_HERE}.learner:packing",
        Needs(gpu_gib=70, modules=("rich", "gymnasium", "pydantic")),
        limit_s=300,
    ),
    Step(
        "fsdp",
        "one sharded learner (NCCL) against a whole one",
        f"{_HERE}.learner:sharded",
        Needs(gpu_gib=60),
        limit_s=240,
    ),
    Step(
        "rllib",
        "RLlib's actors on one GPU, transformers engine, object store",
        f"{_HERE}.actors:rllib",
        Needs(modules=_RLLIB, gpu_gib=60),
        limit_s=300,
    ),
    Step("engine", "vLLM: start, log-probs, seeds", f"{_HERE}.engine:start_and_compare", _ANY),
    *(
        Step(
            f"engine_{name}",
            f"the same with vLLM's {which} model runner",
            f"{_HERE}.engine:start_and_compare",
            _ONE_GPU,
            environment={"VLLM_USE_V2_MODEL_RUNNER": flag},
        )
        for name, which, flag in (("v1", "first", "0"), ("v2", "second", "1"))
    ),
    *(
        Step(
            f"engine_{name}",
            f"the same with asynchronous scheduling {'on' if on else 'off'}",
            f"{_HERE}.engine:start_and_compare",
            _ONE_GPU,
            options={"vllm": {"async_scheduling": on}},
        )
        for name, on in (("async", True), ("sync", False))
    ),
    Step(
        "engine_adapter",
        "vLLM in float16 with the adapter alone, as on a T4",
        f"{_HERE}.engine:with_adapter",
        Needs(modules=(*_VLLM, "peft"), gpu_gib=14),
    ),
    Step(
        "engine_nf4",
        "a learner whose base is in 4 bits, and an engine with the weights that it stands for",
        f"{_HERE}.engine:with_adapter",
        Needs(modules=(*_VLLM, "peft", "bitsandbytes"), gpu_gib=14),
        options={"base": "nf4"},
    ),
    Step(
        "engine_fp8",
        "vLLM with FP8 weights: how far its log-probs are from the learner's",
        f"{_HERE}.engine:start_and_compare",
        _ONE_GPU,
        options={"vllm": {"quantization": "fp8"}},
    ),
    Step(
        "engine_int8",
        "the same with rollouts in int8",
        f"{_HERE}.engine:start_and_compare",
        _ONE_GPU,
        options={"vllm": {"quantization": "r3_int8"}},
    ),
    *(
        Step(
            f"sleep_{way}",
            f"sleep, push, wake five times: {way}",
            f"{_HERE}.actors:sleep_and_push",
            _ONE_GPU if way == "ipc" else _ANY,
            options={"way": way},
        )
        for way in ("in_process", "ipc", "object_store")
    ),
    *(
        Step(
            f"train_{layout.replace(' ', '_')}_{sequences}",
            f"training steps, {layout}, {sequences} sequences",
            f"{_HERE}.training:training",
            {"ipc": _ONE_GPU, "nccl": Needs(gpus=2, modules=_VLLM, gpu_gib=60)}.get(layout, _ANY),
            limit_s=300,
            options={"layout": layout, "sequences": sequences},
        )
        for layout, sequences in (
            ("ipc", 128),
            ("ipc", 256),
            ("one process", 256),
            ("object_store", 256),
            ("nccl", 256),
        )
    ),
    Step(
        "fault_segments",
        "a learner with expandable_segments under CUDA IPC",
        f"{_HERE}.actors:expandable_segments",
        _ONE_GPU,
    ),
    Step("fault_nccl", "an NCCL group on one GPU falls back", f"{_HERE}.actors:nccl_on_one_gpu", _ONE_GPU),
)
