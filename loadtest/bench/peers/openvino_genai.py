"""openvino-genai's continuous batching on the weights of one of our engine folders."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from loadtest.bench.workload import NUM_OUTPUT_TOKENS


class OpenVinoGenAi:
    """Runs whole batches; ``tok_s`` counts generated tokens per second from the first request to the last token."""

    def __init__(
        self, engine_dir: Path, work_dir: Path, *, kv_cache_dtype: str, num_kv_blocks: int, max_num_seqs: int, num_threads: int
    ) -> None:
        import openvino_genai as genai

        self._genai: Any = genai
        _export(engine_dir, work_dir)
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = num_kv_blocks
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = 256
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": kv_cache_dtype,
            "INFERENCE_NUM_THREADS": num_threads,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # as in our engines: the same precision on both sides
        }
        self._pipeline = genai.ContinuousBatchingPipeline(str(work_dir), scheduler, "CPU", properties)
        self._next_id = 0

    def tok_s(self, prompts: list[tuple[int, ...]]) -> float:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = NUM_OUTPUT_TOKENS
        config.set_eos_token_id(0)  # it insists on one, though it is to be ignored
        config.ignore_eos = True
        config.do_sample = False
        started = time.perf_counter()
        handles = []
        for prompt in prompts:
            ids = ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._next_id, ids, config))
            self._next_id += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        elapsed = time.perf_counter() - started
        generated = sum(len(output.generated_ids) for handle in handles for output in handle.read_all())
        assert generated == len(prompts) * NUM_OUTPUT_TOKENS, f"{generated} tokens came back"
        return generated / elapsed


def _export(engine_dir: Path, work_dir: Path) -> None:
    """Our stateful graph in the form that the peer reads: without our ``sample_idx``, since it gathers rows itself."""
    work_dir.mkdir(parents=True, exist_ok=True)
    model = ov.Core().read_model(engine_dir / "model.xml")
    parameter = next(node for node in model.get_parameters() if node.get_friendly_name() == "sample_idx")
    for reader in list(parameter.output(0).get_target_inputs()):
        gather = reader.get_node()
        gather.output(0).replace(gather.input_value(0))
    model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()
    ov.save_model(model, work_dir / "openvino_model.xml", compress_to_fp16=False)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (engine_dir / name).exists():
            shutil.copy(engine_dir / name, work_dir / name)
