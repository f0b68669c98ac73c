"""Generation with any Hugging Face causal LM: shared prompts in the prefill; finished rows leave the batch."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from algorithms.models.causal_lm import load_causal_lm
from algorithms.rollout.engines.base import Completion, Engine, FinishReason, GenerationRequest
from algorithms.rollout.engines.decoding import (
    Truncation,
    left_padding,
    padding_blocks,
    preallocated_kv_cache,
    sample_tokens,
    select_rows,
    uniform_numbers,
    use_grouped_decoding,
)
from algorithms.rollout.types import Sampling
from algorithms.rollout.weight_sync.serialization import NO_VERSION, TENSORS, require_complete, require_same_shapes

# A batch is compacted when this share of its rows has finished: copying the cache costs about one decode step.
COMPACT_WHEN_FINISHED = 0.125
# Tokens of the prompt that the first one's text is read behind: some tokenizers drop a leading blank.
STOP_TEXT_CONTEXT = 6
_INCOMPLETE = "\ufffd"  # what bytes decode to that are no whole character yet


class TransformersEngine(Engine):
    """The embedded engine, on the CPU or one GPU: decodes in rounds, whose batches are the same in every run.

    A round takes all that was submitted before its first step, shortest contexts first to keep the padding small; a
    step decodes one batch of it to the end.

    Args:
        model: folder or Hub id.
        max_num_seqs: rows decoded at once.
        eos_token_ids: a response ends after any of these.
        tokenizer: of the model, to find texts that end a response; None: no request has such texts.
        use_gpu: whether to use the GPU that there may be.
    """

    continuous_batching = False

    def __init__(
        self,
        *,
        model: str,
        dtype: str,
        max_num_seqs: int,
        eos_token_ids: Sequence[int],
        tokenizer: Any = None,
        use_gpu: bool = False,
        trust_remote_code: bool = False,
        revision: str | None = None,
        **_: Any,
    ) -> None:
        self.device = torch.device("cuda" if use_gpu and torch.cuda.is_available() else "cpu")
        self.model = load_causal_lm(model, dtype, revision, trust_remote_code)
        self.model.to(self.device).eval()
        use_grouped_decoding(self.model)
        self.max_num_seqs = max_num_seqs
        self.eos_token_ids = torch.tensor(list(eos_token_ids), device=self.device)
        self.tokenizer = tokenizer
        self.weights_version = 0
        self.context_length = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._submitted: dict[int, GenerationRequest] = {}
        self._round: deque[dict[int, GenerationRequest]] = deque()
        self._awaited: dict[str, torch.Tensor] = {}

    @property
    def unfinished(self) -> int:
        """Requests of this round and of the next one."""
        return len(self._submitted) + sum(map(len, self._round))

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Take a request for the next round."""
        if key in self._submitted or any(key in batch for batch in self._round):
            raise ValueError(f"request {key} is unfinished")
        self._submitted[key] = request

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Decode a batch of the round to its end."""
        if not self._round:
            self._begin_round()
        batch = self._round.popleft() if self._round else {}
        return list(zip(batch, _DecodingBatch(self, list(batch.values())).run(), strict=True)) if batch else []

    def abort(self, keys: Collection[int]) -> None:
        """Drop requests that have not been decoded; the batches of the others stay as they are."""
        for requests in (self._submitted, *self._round):
            for key in keys:
                requests.pop(key, None)
        self._round = deque(batch for batch in self._round if batch)

    def start_weights(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Expect new weights."""
        own = self.model.state_dict()
        require_same_shapes({name: tuple(tensor.shape) for name, tensor in own.items()}, shapes)
        self.weights_version, self._awaited = NO_VERSION, own

    @torch.no_grad()
    def add_weights(self, update: Mapping[str, Any]) -> None:
        """Copy tensors into the model."""
        for name, tensor in update[TENSORS]:
            self._awaited.pop(name).copy_(tensor)

    def finish_weights(self, version: int) -> None:
        """Sample with them."""
        require_complete(self._awaited)
        self.weights_version = version

    def _begin_round(self) -> None:
        requests = sorted(self._submitted.items(), key=lambda item: len(item[1].tokens))
        for start in range(0, len(requests), self.max_num_seqs):
            self._round.append(dict(requests[start : start + self.max_num_seqs]))
        self._submitted = {}

    def close(self) -> None:
        """Free the model."""
        del self.model


class _DecodingBatch:
    """Rows that decode together, from the prefill to the last token."""

    def __init__(self, engine: TransformersEngine, requests: Sequence[GenerationRequest]) -> None:
        self.engine = engine
        device = engine.device
        sampling = [request.sampling for request in requests]
        limits = [1 if r.asked is not None else r.sampling.max_response_tokens for r in requests]
        self.limits = torch.tensor(limits, device=device)
        asked = [-1 if request.asked is None else request.asked for request in requests]
        self.asked = torch.tensor(asked, device=device) if max(asked) >= 0 else None
        self.temperatures = torch.tensor([s.temperature for s in sampling], device=device, dtype=torch.float32)
        self.truncation = _truncation(sampling, device)
        self.ends = _end_tokens(engine, sampling)
        stops = [StopTexts(engine.tokenizer, r.tokens, r.sampling.stop) if r.sampling.stop else None for r in requests]
        self.texts = stops if any(stops) else None
        self.stopped = torch.zeros(len(requests), dtype=torch.bool, device=device)
        self.horizon = int(self.limits.max())
        self.uniforms = uniform_numbers([request.seed for request in requests], self.horizon).to(device)
        self.tokens = torch.zeros(len(requests), self.horizon, dtype=torch.int32, device=device)
        self.logprobs = torch.zeros(len(requests), self.horizon, dtype=torch.float32, device=device)
        self.lengths = torch.zeros(len(requests), dtype=torch.long, device=device)
        self.rows = torch.arange(len(requests), device=device)  # which request each row of the cache belongs to
        self.logits = self._prefill(requests)

    def _prefill(self, requests: Sequence[GenerationRequest]) -> torch.Tensor:
        """Run each distinct context once, then give every request its copy of the cache; returns logits [B, V]."""
        distinct: dict[bytes, int] = {}
        owners = [distinct.setdefault(request.tokens.tobytes(), len(distinct)) for request in requests]
        contexts: list[np.ndarray] = [np.frombuffer(key, dtype=np.int32) for key in distinct]
        width = max(map(len, contexts))
        tokens = torch.zeros(len(contexts), width, dtype=torch.long)
        mask = torch.zeros(len(contexts), width, dtype=torch.long)
        for row, context in enumerate(contexts):
            tokens[row, width - len(context) :] = torch.from_numpy(context.astype(np.int64))
            mask[row, width - len(context) :] = 1
        device = self.engine.device
        tokens, mask = tokens.to(device), mask.to(device)
        self.cache = preallocated_kv_cache(self.engine.model.config)
        output = self.engine.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        copies = torch.tensor(owners, device=device)
        select_rows(self.cache, copies)
        self.mask = mask[copies]
        self.positions = self.mask.sum(-1)
        self.padding = width - self.positions
        self._cut_blocks()
        return output.logits[:, -1][copies]

    def run(self) -> list[Completion]:
        """Decode until every row has ended."""
        active = torch.ones(len(self.rows), dtype=torch.bool, device=self.engine.device)
        for step in range(self.horizon):
            token = self._sample(step, active)
            stopped = active & self._stops(token, active)
            self.stopped[self.rows[stopped]] = True
            active &= ~(stopped | (step + 1 >= self.limits[self.rows]))
            remaining = int(active.sum())
            if remaining == 0:
                break
            if remaining <= (1 - COMPACT_WHEN_FINISHED) * len(active):
                token, active = self._compact(active, token)
            self._forward(token)
        return self._completions()

    def _sample(self, step: int, active: torch.Tensor) -> torch.Tensor:
        truncation = self.truncation and self.truncation.of(self.rows)
        uniforms, temperatures = self.uniforms[self.rows, step], self.temperatures[self.rows]
        token, logprob = sample_tokens(self.logits, uniforms, temperatures, truncation)
        if step == 0 and self.asked is not None:  # all rows are there yet
            own = self.logits.float().log_softmax(-1).gather(-1, self.asked.clamp(min=0)[:, None])[:, 0]
            token = torch.where(self.asked >= 0, self.asked, token)
            logprob = torch.where(self.asked >= 0, own, logprob)
        rows = self.rows[active]
        self.tokens[rows, step] = token[active].to(torch.int32)
        self.logprobs[rows, step] = logprob[active]
        self.lengths[rows] = step + 1
        return token

    def _stops(self, token: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Return whether the rows' tokens, int64 [B], end their responses, bool [B]."""
        stops = (token[:, None] == self.ends[self.rows]).any(-1)
        if self.texts is not None:
            rows, alive = self.rows.tolist(), active.tolist()
            for place, (row, each) in enumerate(zip(rows, token.tolist(), strict=True)):
                text = self.texts[row]
                if text is not None and alive[place] and text.complete(each):
                    stops[place] = True
        return stops

    def _compact(self, active: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keep = active.nonzero()[:, 0]
        select_rows(self.cache, keep)
        self.rows, self.mask, self.positions = self.rows[keep], self.mask[keep], self.positions[keep]
        self._cut_blocks()
        return token[keep], active[keep]

    def _cut_blocks(self) -> None:
        """On a CPU, note which rows have so much padding that attention leaves it out."""
        on_cpu = self.engine.device.type == "cpu"
        self.blocks = padding_blocks(self.padding[self.rows].tolist()) if on_cpu else []

    def _forward(self, token: torch.Tensor) -> None:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=-1)
        with left_padding(self.mask.shape[1], self.blocks):
            output = self.engine.model(
                input_ids=token[:, None],
                attention_mask=self.mask,
                position_ids=self.positions[:, None],
                past_key_values=self.cache,
                use_cache=True,
            )
        self.positions = self.positions + 1
        self.logits = output.logits[:, -1]

    def _completions(self) -> list[Completion]:
        tokens, logprobs = self.tokens.cpu().numpy(), self.logprobs.cpu().numpy()
        stopped, completions = self.stopped.tolist(), []
        for row, length in enumerate(self.lengths.tolist()):
            reason = FinishReason.STOP if stopped[row] else FinishReason.LENGTH
            completions.append(Completion(tokens[row, :length].copy(), logprobs[row, :length].copy(), reason))
        return completions


class StopTexts:
    """Finds the token that completes a text which ends a response, as vLLM's incremental detokenizer finds it.

    Reads one response, token by token. Special tokens count as the text that they are written as.

    A token's text is what it adds behind its predecessors, once its bytes make whole characters.

    Args:
        tokenizer: of the model.
        prompt: int32 [P], what the response follows; its own text is not searched.
        stop: the texts, none of them empty.
    """

    def __init__(self, tokenizer: Any, prompt: np.ndarray, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens = prompt[-STOP_TEXT_CONTEXT:].tolist()
        self._read = len(self._tokens)  # of `_tokens`, those whose text has been searched
        self._overlap = max(map(len, stop)) - 1
        self._tail = ""

    def complete(self, token: int) -> bool:
        """Add the response's next token; return whether it completes a stop text."""
        self._tokens.append(token)
        before, text = self._decode(self._tokens[: self._read]), self._decode(self._tokens)
        if len(text) <= len(before) or text.endswith(_INCOMPLETE):
            return False
        self._tokens, self._read = self._tokens[self._read :], len(self._tokens) - self._read
        searched = self._tail + text[len(before) :]
        self._tail = searched[-self._overlap :] if self._overlap else ""
        return any(stop in searched for stop in self._stop)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def _truncation(sampling: Sequence[Sampling], device: torch.device) -> Truncation | None:
    """Truncations of a batch; None where no row has one."""
    if not any(each.truncated for each in sampling):
        return None
    rows = zip(*((each.top_p, each.top_k, each.min_p) for each in sampling), strict=True)
    return Truncation(*(torch.tensor(values, device=device) for values in rows))


def _end_tokens(engine: TransformersEngine, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Tokens that end each row's response, int64 [B, K], padded with -1."""
    own = [torch.tensor([*engine.eos_token_ids.tolist(), *each.stop_token_ids]) for each in sampling]
    return torch.nn.utils.rnn.pad_sequence(own, batch_first=True, padding_value=-1).to(engine.device)
