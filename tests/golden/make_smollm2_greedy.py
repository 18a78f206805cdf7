"""Remake ``smollm2_greedy.json``: greedy tokens of SmolLM2 from an outside implementation, transformers on torch.

Needs packages that Tandem itself does not, so give it an environment of its own::

    pip install torch==2.13.0 transformers==5.24.0 gguf accelerate
    python tests/golden/make_smollm2_greedy.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf

Transformers reads and dequantizes the GGUF itself; nothing of Tandem takes part and nothing is fetched from the network.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

NUM_TOKENS = 48
TARGET = Path(__file__).resolve().parent / "smollm2_greedy.json"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that reverses a string.",
    "Explain why the sky is blue in two sentences.",
    "Translate to French: Good morning, my friend.",
    "List three fruits as a JSON array.",
    "请用一句话介绍北京。",
    "Tom has 12 apples and gives away 5. How many apples does he have left?",
    "Summarize: The meeting was moved from Tuesday to Thursday because the room was taken.",
)


def main(gguf_path: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    folder, name = gguf_path.parent, gguf_path.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    cases = []
    for question in QUESTIONS:
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        token_ids, gaps = _greedy(model, prompt_ids)
        cases.append({"question": question, "prompt_ids": prompt_ids, "token_ids": token_ids, "gaps": gaps})
        print(f"{min(gaps):.4f} {question} -> {tokenizer.decode(token_ids)!r}")
    tools = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(f"  {json.dumps(case, ensure_ascii=False)}" for case in cases)
    TARGET.write_text(f'{{"weights": "{name}", "tools": {json.dumps(tools)}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def _greedy(model, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
    """Gap: how far the best logit is above the second best."""
    import torch

    token_ids: list[int] = []
    gaps = []
    step_ids, cache = prompt_ids, None
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            output = model(torch.tensor([step_ids]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            best = output.logits[0, -1].topk(2)
            step_ids = [int(best.indices[0])]
            token_ids += step_ids
            gaps.append(round(float(best.values[0] - best.values[1]), 4))
    return token_ids, gaps


if __name__ == "__main__":
    main(Path(sys.argv[1]))
