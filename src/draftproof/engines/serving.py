"""What each user of a batch receives, in the worker's process: ids, text, reasons and counts.

Loaded by the worker as ``draftproof_serving``, so it imports the standard library only.
"""

from __future__ import annotations

from typing import Any

DECODED_BEFORE = 16
"""Tokens of the prompt that an output is decoded behind: some tokenizers drop the space that a text begins with."""


def serve(llm: Any, sampling_type: Any, script: Any, request: dict[str, Any]) -> dict[str, Any]:
    """One batch of unlike requests, each with its own sampling parameters. `script`: of a control proposer, or None."""
    prompts = [{"prompt_token_ids": row} for row in request["prompts"]]
    sampling = [sampling_type(**fields) for fields in request["sampling"]]
    if script is not None:
        entries = request["script"]
        script.load(*([entry[name] for entry in entries] for name in ("prompt", "reference", "plan")))
    tokenizer = llm.get_tokenizer()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    config = llm.llm_engine.vllm_config.model_config.try_get_generation_config()
    more = config.get("eos_token_id") or []
    return {
        "received": [received(tokenizer, output) for output in outputs],
        "eos_token_id": tokenizer.eos_token_id,
        "more_stop_ids": sorted({*([more] if isinstance(more, int) else more)} - {tokenizer.eos_token_id}),
    }


def received(tokenizer: Any, output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    metrics = getattr(completion, "spec_decode_metrics", None)
    steps = metrics.to_dict() if metrics is not None else {}
    ids = list(completion.token_ids)
    decoded, ends = decode(tokenizer, list(output.prompt_token_ids), ids)
    return {
        "token_ids": ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "decoded": decoded,
        "ends": ends,
        "accepted": steps.get("per_step_accepted", []),
        "drafted": steps.get("per_step_drafted", []),
        "counted": metrics is not None,
    }


def decode(tokenizer: Any, prompt: list[int], ids: list[int]) -> tuple[str, list[int]]:
    """The text of `ids` behind `prompt`, and its length after each token, in characters.

    Every beginning is decoded anew, so that the engine's own decoding token by token is compared with something else.
    Half a character counts with the token that completes it, and not at all at the end.
    """
    context = prompt[-DECODED_BEFORE:]
    before = len(tokenizer.decode(context, skip_special_tokens=True))
    texts = [
        tokenizer.decode([*context, *ids[:count]], skip_special_tokens=True)[before:]
        for count in range(1, len(ids) + 1)
    ]
    ends = [len(text.rstrip("\ufffd")) for text in texts]
    return (texts[-1][: ends[-1]] if texts else ""), ends
