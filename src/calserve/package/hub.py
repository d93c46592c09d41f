"""Fetching from a model hub, for those who reach one: `hf:ORG/NAME`.

Owns the name's form and the choice of files; the transfer, its resuming and its checks are huggingface_hub's. Must
not know packages.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from calserve.package.fault import PackageError
from calserve.progress import Progress

HUB_PREFIX = "hf:"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"hf:({_PART}/{_PART})(?:/([A-Za-z0-9][A-Za-z0-9._/-]*\.gguf))?")
# Weights as data, and a graph; never pickles, never code.
DIRECTORY_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "openvino_model.*"]


def pull_hub(name: str, cache_dir: Path, progress: Progress) -> Path:
    """The GGUF file of a hub repository, or its directory of safetensors when it has none.

    Raises PackageError: a bad name, several GGUF files and none chosen, the extra missing, the hub unreachable.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise PackageError("hub_name", f"{name!r} is not of the form hf:ORG/NAME or hf:ORG/NAME/FILE.gguf.")
    try:
        import huggingface_hub
    except ImportError:
        raise PackageError(
            "hub_missing", "Pulling from a hub needs the extra `hub`: pip install 'calserve[hub]'."
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it would print each of its retries
    repository, wanted = match.groups()
    try:
        with progress.step(f"Fetching {repository}"):
            return _fetch(huggingface_hub, repository, wanted, cache_dir)
    except PackageError:
        raise
    except Exception as error:  # huggingface_hub lets through whatever its transports raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise PackageError("hub_failed", f"{repository} could not be fetched: {reason.rstrip('.')}.") from None


def _fetch(hub: Any, repository: str, wanted: str | None, cache_dir: Path) -> Path:
    folder = cache_dir / ("hf--" + repository.replace("/", "--"))
    if wanted is None:
        files = [f for f in hub.list_repo_files(repository) if f.endswith(".gguf")]
        if len(files) > 1:
            raise PackageError(
                "hub_choice",
                f"{repository} holds {len(files)} GGUF files; name one, such as hf:{repository}/{files[0]}.",
            )
        wanted = files[0] if files else None
    if wanted is not None:
        return Path(hub.hf_hub_download(repository, wanted, local_dir=folder))
    return Path(hub.snapshot_download(repository, allow_patterns=DIRECTORY_PATTERNS, local_dir=folder))
