"""The smallest board that passes: one chip, two lanes of 64 tokens, a "model" that weighs and sums a lane."""
import numpy as np
from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.runtime import checks, contract as c
SHAPES = {"tokens": (2, 64), "positions": (2, 64), "counts": (2,), "lengths": (2,), "valid": (2,)}
INPUTS = {n: c.TensorContract(n, s, "int32", 4 * int(np.prod(s)), sliceable=False) for n, s in SHAPES.items()}
LOGITS = c.TensorContract("logits", (2, 32), "float32", 4 * 2 * 32, sliceable=False)  # two rows, 32 tokens
PROFILE = GraphProfile("step", frozenset(Task), 2, True, RowBinding.FIXED, 64, 64, 128, 1)  # two rows, any task
GRAPH = c.GraphContract(PROFILE, c.KvLayout.LANES, INPUTS, {"logits": LOGITS}, (), c.InactiveLanePolicy.VALID_MASK, 32)
class Buffers:  # the memory of one job; the graph has nothing to slice and no CSR
    slice, set_csr, undo_slices = lambda self, *what: 27, lambda self, *what: 4, lambda self: 0
    def __init__(self, bank):
        self.graph, self.bank, self.mapped = "step", bank, set()
        self.arrays = {t.name: np.zeros(t.shape, t.dtype) for t in (*INPUTS.values(), LOGITS)}
        self.host = self.output = self.arrays.__getitem__
    def map(self, name): return 4 if name not in self.arrays else self.mapped.add(name) or 0
    def reset(self):
        for name, array in self.arrays.items(): array.fill(np.nan if name == "logits" else 0)
        return self.mapped.clear() or 0
class Session:  # one configured package, and the mirror of its KV: unit i is lane i
    lanes, unit_tokens, kv_units, graphs, memory = 2, 64, 2, {"step": GRAPH}, lambda self: {"kv": self.cells.nbytes}
    can_allocate, release, cancel = lambda self, units: units <= 2, lambda self, lane: 0, lambda self, ticket: 27
    def __init__(self, board, name, generation):
        self.board, self.name, self.generation, self.kv, self.drain = board, name, generation, self, lambda ns: 0
        self.cells, self.flying = np.zeros((2, 64), int), {}
    def apply(self, lane, units, length): return 0 if lane in (0, 1) and units == (lane,) and 0 <= length <= 64 else 14
    def allocate(self, name, bank): return (4, None) if name != "step" or self.board.now != self else (0, Buffers(bank))
    def submit(self, spec, buffers):  # what must be refused, then the job itself
        if (self.board.now, spec.session, spec.generation) != (self, self.name, self.generation): return 16, None
        if self.flying or len(buffers.mapped) < len(buffers.arrays): return 17 if self.flying else 16, None
        if wrong := checks.check_job(GRAPH, spec, checks.KvRoom(2, 64, 2)): return wrong[0], None
        at, number = buffers.arrays, len(self.board.spans) + 1
        for lane in np.flatnonzero(at["valid"]):  # the device believes its tensors, never the job's description
            count, end = at["counts"][lane], at["lengths"][lane]
            self.cells[lane, end - count : end] = at["tokens"][lane, :count]
            at["logits"][lane] = np.cos(np.arange(32) * (1 + self.cells[lane, :end] @ np.arange(1, end + 1) % 997))
        self.board.spans.append(c.TraceSpan(0, spec.job, "compute", 10 * number, 10 * number + 9))
        return 0, self.flying.setdefault(number, c.Ticket(number, spec.job, spec.generation))
    def wait(self, ticket, timeout_ns):
        done = self.flying.pop(ticket.number, None)
        return (0, c.JobStatus(done, done.generation, c.StatusKind.DONE)) if done else (4, None)
    def close(self): return 17 if self.flying else self.board.now is self and self.board.keep(None) or 0
class Board:
    telemetry, health, close = lambda self, chip: c.Telemetry(), lambda self: c.Health(True), lambda self: None
    def __init__(self): self.now, self.spans = None, []
    def describe(self): return c.BoardFacts("toy", False, (c.ChipFacts(0, 1, 4096),), {}, {"toy": "1"})
    def trace(self, since_ns): return tuple(span for span in self.spans if span.end_ns >= since_ns)
    def counters(self):
        left = len(self.now.flying) if self.now else 0; return c.Counters(left, len(self.spans) - left, left)
    def keep(self, session): self.now = session
    def configure(self, package, asked, name, generation):
        refused = ((19, package.board != "toy"), (7, self.now), (14, asked.chips != (0,) or not 0 <= asked.lanes <= 2),
                   (5, asked.numerics not in ("", "exact")), (27, asked.max_in_flight > 1), (1, asked.dram_quota == 1))
        code = next((code for code, holds in refused if holds), 0)
        return (code, None) if code else (0, self.keep(Session(self, name, generation)) or self.now)
    def reset(self, scope, session): return 27 if scope.value != "configuration" else self.keep(None) or 0
def make(model):  # what conform calls
    package = ("toy-model", "toy", 32, 64, 2, (1, 2), "exact", "none", {}, {}, {"unit_tokens": 64}, 0, (), (GRAPH,))
    return Board(), c.BoardPackage(model, "0" * 64, *package)
