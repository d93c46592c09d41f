"""The same events at the same times give the same commands, byte for byte, under any hash seed (I13)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from core_rig import MS, Rig, fault, paged_facts

from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.events import Cancel, CancelCause, JobFailed
from calserve.core.outcomes import FaultClass, RowEnd


def record() -> str:
    """Hash of the printed commands of a fixed, busy run: tenants, chunks, stops, cancels, a recovery."""
    tenants = {f"t{i}": TenantPolicy(weight=i + 1) for i in range(5)}
    config = SchedulerConfig(prefill_chunk_tokens=8, tenants=tenants)
    rig = Rig(config=config, facts=paged_facts(lanes=6, units=48), check=False).up()
    digest = hashlib.sha256()
    for i in range(400):
        rig.now = i * 7 * MS
        digest.update(str(rig.submit(f"r{i}", 3 + i * 13 % 70, 1 + i % 9, f"t{i % 5}")).encode())
        if i % 11 == 0:
            digest.update(str(rig.send(Cancel(f"r{i // 2}", CancelCause.ASKED))).encode())
        if i == 200:
            spec = rig.jobs.pop(min(rig.jobs))
            commands = rig.send(JobFailed(spec.job, spec.generation, fault(FaultClass.DEVICE)))
            digest.update(str(rig.lifecycle(commands)).encode())
        while rig.jobs and (i * 5 + len(rig.jobs)) % 3:
            ends = {row.request: RowEnd.EOS for row in rig.spec.rows if int(row.request[1:]) % 7 == 0}
            digest.update(str(rig.done(ends=ends)).encode())
            if i % 2:
                break
    digest.update(str(rig.view).encode())
    return digest.hexdigest()


def test_the_same_run_under_other_hash_seeds_prints_the_same_commands() -> None:
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_determinism; print(test_determinism.record())"
    hashes = set()
    for seed in ("0", "1", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        hashes.add(done.stdout)
    assert hashes == {record() + "\n"}
