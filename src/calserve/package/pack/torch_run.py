"""Running `torch_worker`, the process that alone imports torch.

Owns the job file, the child's environment, and its end: with its sentence, killed for memory, or interrupted with us.
Must not import torch. Life of the main object: a TorchJob is written into the scratch folder, run once and forgotten.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from calserve.package.fault import PackageError
from calserve.progress import Progress

WORKER = "calserve.package.pack.torch_worker"
JOB_FILE, LOG_FILE = "torch-job.json", "torch.log"
# Float32 weights and half as much again while they are read and traced, and the libraries themselves.
BYTES_PER_PARAMETER = 6
LIBRARY_BYTES = 1 << 30
# Nothing is fetched, reported or built while packing.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "OPENVINO_TELEMETRY_OPT_OUT": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
}


class TorchJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """model: directory of the weights. architecture: the transformers class. gguf: file in `model`, or none for
    safetensors. ids: tokens to compute logits of, into the file `logits` (none: no reference). export: folder for the
    graph (none: no export), with weights of `dtype`, a torch name."""

    model: str
    architecture: str
    ids: list[int]
    gguf: str = ""
    logits: str = ""
    export: str = ""
    dtype: str = "float32"

    @classmethod
    def read(cls, path: Path) -> TorchJob:
        return msgspec.json.decode(path.read_bytes(), type=cls)


def check_memory(parameters: int) -> None:
    """Raise PackageError unless this machine has room for `parameters` as torch holds them."""
    needed = parameters * BYTES_PER_PARAMETER + LIBRARY_BYTES
    free = available_bytes()
    if free < needed:
        raise PackageError(
            "memory",
            f"Packing {parameters / 1e9:.2f} billion weights takes {needed / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free.",
            needed,
            free,
        )


def available_bytes() -> int:
    """Memory that can be had without swapping; where the system does not say, all there is."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def run_torch(job: TorchJob, scratch: Path, progress: Progress) -> None:
    """Run `job`. Raises PackageError with the worker's sentence."""
    job_file, log_file = scratch / JOB_FILE, scratch / LOG_FILE
    job_file.write_bytes(msgspec.json.encode(job))
    command = [sys.executable, "-P", "-m", WORKER, str(job_file)]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with (
        log_file.open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=scratch, env=environment) as process,
    ):
        try:
            assert process.stdout is not None
            error = _follow(process.stdout, progress)
            code = process.wait()
        except BaseException:  # an interrupted pack leaves no worker behind
            process.kill()
            raise
    if code:
        raise _ended(code, error, log_file)


def _follow(stream: IO[bytes], progress: Progress) -> str:
    """Show the worker's steps; its sentence, when it tells one."""
    error = ""
    with ExitStack() as running:
        for line in stream:
            told = json.loads(line)
            error = told.get("error", error)
            if "step" in told:
                running.close()
                running.enter_context(progress.step(told["step"]))
    return error


def _ended(code: int, error: str, log_file: Path) -> PackageError:
    if code == -signal.SIGKILL:
        return PackageError("memory", "The export was killed, most likely for want of memory.")
    last = log_file.read_text("utf-8", errors="replace").strip().splitlines()[-1:]
    reason = error or " ".join(last)[:300].rstrip(".") or f"it ended with code {code}"
    return PackageError("export", f"The export through optimum-intel failed: {reason}.")
