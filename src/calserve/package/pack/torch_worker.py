"""The one process that imports torch: reference logits by transformers, and export through optimum-intel.

Owns a single job, read from the JSON file that is its only argument. Started by `torch_run`, in a process of its own,
so that what torch takes goes back with it, and its threads and OpenVINO's never meet. Reads safetensors or GGUF only,
runs no code of a model's, and reaches no network. Tells its steps, and why it ended, as JSON lines on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from calserve.package.pack.torch_run import TorchJob


def main(job_file: str) -> int:
    out = _private_stdout()
    try:
        _work(TorchJob.read(Path(job_file)), out)
    except Exception as error:  # whatever the libraries raise is a sentence for the parent
        reason = " ".join(str(error).split())[:300].rstrip(".")
        _tell(out, "error", f"{type(error).__name__}: {reason}" if reason else type(error).__name__)
        raise
    return 0


def _private_stdout() -> TextIO:
    """Our lines alone; what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _tell(out: TextIO, key: str, text: str) -> None:
    out.write(json.dumps({key: text}) + "\n")
    out.flush()


def _work(job: TorchJob, out: TextIO) -> None:
    import torch

    torch.manual_seed(0)
    model = None
    if job.logits:
        _tell(out, "step", "Computing reference logits with transformers")
        model = _load(job, torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([job.ids])).logits[0]
        np.save(job.logits, logits.float().numpy(), allow_pickle=False)
    if job.export:
        _tell(out, "step", "Exporting to a graph")
        dtype = getattr(torch, job.dtype)
        if model is None or dtype != torch.float32:
            model = None  # before another is made
            model = _load(job, dtype)
        _check_finite(model)
        _export(model, Path(job.export), is_half=dtype != torch.float32)


def _load(job: TorchJob, dtype: Any) -> Any:
    import transformers

    family = getattr(transformers, job.architecture)
    where: dict[str, Any] = {"gguf_file": job.gguf} if job.gguf else {"use_safetensors": True}
    model, info = family.from_pretrained(
        job.model,
        dtype=dtype,
        attn_implementation="sdpa",
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **where,
    )
    lacking = sorted(set(info["missing_keys"]) | {str(key) for key in info.get("mismatched_keys", ())})
    if lacking and not job.gguf:
        raise ValueError(f"the checkpoint lacks {len(lacking)} tensors, such as {lacking[0]}")
    return model.eval()


def _check_finite(model: Any) -> None:
    for name, weights in model.named_parameters():
        if not bool(weights.isfinite().all()):
            raise ValueError(f"{name} holds values that are not finite, or beyond the range of {weights.dtype}")


def _export(model: Any, folder: Path, *, is_half: bool) -> None:
    from optimum.exporters.openvino.convert import export_from_model

    export_from_model(model, folder, task="text-generation-with-past", stateful=True, patch_16bit_model=is_half)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
