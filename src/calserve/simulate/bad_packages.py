"""Packages that must not come to serve, each for a reason of its own: what an operator may load by mistake.

Owns: how each is made from a good one. Must not know: who refuses it, and when. Their hashes are names that tell what
is wrong, so that a record can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calserve.core.job import Task
from calserve.runtime.contract import BoardPackage, Golden, GraphContract

_PREFIX = "bad: "


def _with_golden(package: BoardPackage, prompt: tuple[int, ...], output: tuple[int, ...]) -> BoardPackage:
    return replace(package, goldens=(Golden(prompt, output, (1.0,) * len(output)),))


def _with_graphs(package: BoardPackage, change: Callable[[GraphContract], GraphContract]) -> BoardPackage:
    return replace(package, graphs=tuple(map(change, package.graphs)))


def _wrong_token(package: BoardPackage) -> BoardPackage:
    golden = package.goldens[0]
    return _with_golden(package, golden.prompt_ids, ((golden.output_ids[0] + 1) % package.vocab_size,))


def _least_chunk(package: BoardPackage) -> BoardPackage:
    """A prompt can only be cut into parts that are longer than a row."""
    return _with_graphs(
        package, lambda graph: replace(graph, profile=replace(graph.profile, min_chunk_tokens=package.context))
    )


def _no_room(package: BoardPackage) -> BoardPackage:
    return _with_graphs(package, lambda graph: replace(graph, profile=replace(graph.profile, max_tokens=1)))


def _without_margins(package: BoardPackage) -> BoardPackage:
    """Whoever reads its goldens step by step is thrown out in the middle."""
    return replace(package, goldens=tuple(replace(golden, margins=()) for golden in package.goldens))


def _unreadable(_: BoardPackage) -> BoardPackage:
    raise OSError("the package could not be read to its end")


def _only(package: BoardPackage, task: Task) -> BoardPackage:
    return replace(package, graphs=tuple(graph for graph in package.graphs if task in graph.profile.tasks))


_CHANGES: dict[str, Callable[[BoardPackage], BoardPackage]] = {
    "two graphs of one name": lambda package: replace(package, graphs=(*package.graphs, package.graphs[0])),
    "logits in tiles of none": lambda package: _with_graphs(package, lambda graph: replace(graph, logits_tile=0)),
    "for another board": lambda package: replace(package, board="another"),
    "no decode graph": lambda package: _only(package, Task.PREFILL),
    "no prefill graph": lambda package: _only(package, Task.DECODE),
    "no room for an answer": _no_room,
    "no cut of a prompt": _least_chunk,
    "a golden of another model": _wrong_token,
    "a golden beyond the context": lambda package: _with_golden(package, (1,) * (package.context + 1), (0,)),
    "a golden beyond the vocabulary": lambda package: _with_golden(package, (package.vocab_size,), (0,)),
    "a golden without margins": _without_margins,
    "a file that breaks off": _unreadable,
}  # fmt: skip
# Every bad package there is, by hash; the first is not there at all.
BAD_PACKAGES = (_PREFIX + "no such package", *(_PREFIX + name for name in _CHANGES))


def bad_package(good: BoardPackage, wanted: str) -> BoardPackage | None:
    """The bad package of that hash; None where there is none. Raises OSError for the one that cannot be read."""
    change = _CHANGES.get(wanted.removeprefix(_PREFIX))
    return replace(change(good), hash=wanted) if change is not None else None
