"""Peers that do the same work: OpenVINO GenAI's continuous batching over the same IR and weights.

Optional (extra `peers`). It is given the stateful IR the package was made from, token ids in and token ids out, so
that neither tokenizer nor HTTP is in its way; once as it comes (`genai`) and once with the numeric hints that the
package's board was tuned to (`genai-hints`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from calserve.bench.workload import Run, Work


class GenAiLoop:
    """`ContinuousBatchingPipeline` on one IR directory."""

    def __init__(self, ir: Path, settings: Mapping[str, str], kv_tokens: int) -> None:
        import openvino as ov
        import openvino_genai as genai

        self._ov, self._genai = ov, genai
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 16
        scheduler.num_kv_blocks = kv_tokens // 32
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.ContinuousBatchingPipeline(str(ir), scheduler, "CPU", dict(settings))

    def run(self, work: Work) -> Run:
        """All prompts added at once, stepped until none is left."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens = work.new_tokens
        config.min_new_tokens = work.new_tokens
        config.ignore_eos = True
        if work.temperature:
            config.do_sample, config.temperature, config.top_p = True, work.temperature, work.top_p
        began = time.perf_counter()
        handles = [
            self._pipeline.add_request(i, self._ov.Tensor(np.array([prompt], np.int64)), config)
            for i, prompt in enumerate(work.prompts)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        seconds = time.perf_counter() - began
        tokens = sum(len(out.generated_ids) for handle in handles for out in handle.read_all())
        return Run(tokens, seconds)
