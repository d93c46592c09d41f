"""A soak alone reaches every line of the executor's steps and nearly all of `core`.

Lines that no soak can reach are listed by their text, each with its reason; a line that is reached after all, or gone,
must leave the list.
"""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from pathlib import Path

import coverage
import pytest
from soak_rig import SOURCE

CORE_SHARE_MIN = 0.95
STEPS = (
    "engine_step", "completion", "lifecycle", "awaiting", "prepare", "pool", "port", "audit", "logits", "warmup",
    "sequence", "opening", "telling",
)  # fmt: skip
# Minutes and seeds, in two processes.
RUNS = (("4", *map(str, range(1, 46))), ("4", *map(str, range(146, 196))))

PROGRAM = """
import logging, sys
import coverage
data, minutes, *seeds = sys.argv[1:]
rings = ["calserve.executor", "calserve.core"]
watch = coverage.Coverage(data_file=data, branch=False, source=rings, config_file=False)
watch.start()
logging.disable(logging.CRITICAL)
from calserve.simulate.plan import MINUTE, draw_plan
from calserve.simulate.run import Run
for seed in seeds:
    result = Run(draw_plan(int(seed), int(minutes) * MINUTE), check_every=500).run()
    if result.violations:
        print(f"seed {seed}: {result.violations[0]}")
watch.stop()
watch.save()
"""

# The text of a line that is not reached -> why no soak can.
_THREADS = "the loop of a thread that blocks; the soak drives the same generator itself"
_REFUSED = "core refuses such a package by its facts before a warm-up begins"
_BROKEN = "an exception on the engine thread ends the process; no oddity raises while a session serves"
_LEAVING = "the end of the threads; the soak has none"
_RAISED = 'raise WarmupFailed(Failure("warm", CalCode.INVALID_CALBIN, FaultClass.ARTIFACT,'
UNREACHABLE = {
    "awaiting": {
        "return self.session.wait(self.ticket, self.timeout_ns)": _THREADS,
        "try:": _THREADS,
        "wanted = next(steps)": _THREADS,
        "while True:": _THREADS,
        "answer = wanted.wait()": _THREADS,
        "except Exception as error:": _THREADS,
        "wanted = steps.throw(error)": _THREADS,
        "wanted = steps.send(answer)": _THREADS,
        "except StopIteration as end:": _THREADS,
        "result: _End = end.value": _THREADS,
        "return result": _THREADS,
    },
    "engine_step": {
        "return _unprepared(spec, fault)": "what core plans is within the contract that it was told of",
        "return": "core gives no lane back of a generation whose end it ordered",
        "except Exception:": _BROKEN,
        "open_requests, self.origins = self.origins, {}": _BROKEN,
        "if open_requests:": _BROKEN,
        "self.outlet.deliver(broken_off(open_requests))": _BROKEN,
        "raise": _BROKEN,
        "self._tell_clients(later, said)  # it was decided, and holds": _BROKEN,
        "for port in (*self.ports.values(), *self.endings.ports.values(), *self.endings.fenced.values()):": _LEAVING,
        "port.pool.leave_unended()": _LEAVING,
    },
    "telling": {
        'failure = Failure("engine", 0, FaultClass.PROGRAMMING, "an internal invariant broke")': _BROKEN,
        "return [Ending(request, FinishReason.INTERNAL, Usage(0, 0), None, failure) for request in requests]": _BROKEN,
    },
    "audit": {'return ""': "an audit without a board, which only a test has"},
    "pool": {
        'return failure("buffers", CalCode.DEVICE_BUSY, f"all {self.limit} sets of buffers are in use")': (
            "core never has more jobs in flight than there are sets"
        ),
        "self.is_left = True": _LEAVING,
        "_LEFT.append(self)": _LEAVING,
        "for lease in self.quarantined:": _LEAVING,
        "if not lease.has_ended:": _LEAVING,
        "lease.leave()": _LEAVING,
    },
    "warmup": {
        f'{_RAISED} f"no graph can {{task.value}}"))': _REFUSED,
        f'{_RAISED} "no graph can decode"))': _REFUSED,
        "yield from _check_golden(rig, golden, package.golden_tolerance, package.max_lanes)": (
            "goldens in the widest batch: only calserve validate --full asks for them, no server does"
        ),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str]]]:
    """By "ring/module": how many lines there are, and the texts of those that were never reached."""
    root = tmp_path_factory.mktemp("coverage")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root / f"{i}.data"), *words],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for i, words in enumerate(RUNS)
    ]  # fmt: skip
    told = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(RUNS)
    assert told == [""] * len(RUNS), "a seed failed"
    together = coverage.Coverage(data_file=str(root / "all.data"), config_file=False)
    together.combine([str(root / f"{i}.data") for i in range(len(RUNS))])
    found = {}
    for path in together.get_data().measured_files():
        _, lines, _, missing, _ = together.analysis2(path)
        texts = [linecache.getline(path, number).strip() for number in missing]
        found[f"{Path(path).parent.name}/{Path(path).stem}"] = (len(lines), texts)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_soak_reaches_every_line_of_an_executor_step(missed: dict[str, tuple[int, list[str]]], step: str) -> None:
    assert sorted(set(missed[f"executor/{step}"][1])) == sorted(UNREACHABLE.get(step, {}))


@pytest.mark.slow
def test_soak_reaches_nearly_all_of_core(missed: dict[str, tuple[int, list[str]]]) -> None:
    core = {name: found for name, found in missed.items() if name.startswith("core/")}
    lines = sum(count for count, _ in core.values())
    unreached = [f"{name}: {text}" for name, (_, texts) in sorted(core.items()) for text in texts]
    assert len(unreached) <= (1 - CORE_SHARE_MIN) * lines, "\n".join(unreached)
