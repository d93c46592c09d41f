"""The rings of ARCHITECTURE.md as a test: who may import whom, where threads may stand, and how large a room may be."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "calserve"
FILES = sorted(SOURCE.rglob("*.py"))
RINGS = ("core", "runtime", "text", "sampling", "executor", "package", "service", "api", "observe")
LEAVES = ("bench", "simulate", "accept", "deploy", "dashboard")

# Ring -> what it may import of ours, itself aside. An entry with a dot is one module.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "core": (),
    "runtime": ("core",),
    "text": (),
    "sampling": (),
    "executor": (
        "core", "runtime.contract", "runtime.checks", "runtime.encoding", "runtime.errors", "text", "sampling",
    ),
    "package": ("core", "runtime.contract", "runtime.targets", "runtime.checks", "runtime.errors", "text.growth",
                "text.template"),
    "service": ("executor", "package", "core", "text", "sampling"),
    "api": ("service",),
    "observe": ("core",),
}  # fmt: skip
# A package for a target whose compiler is ours is made by what runs it: its graphs, and the right tokens of its model.
MAY_ALSO_IMPORT: dict[str, tuple[str, ...]] = {"package/pack/sim_target.py": ("runtime.sim",)}
# What the core may use of the standard library: nothing that reads a clock, the system, or chance.
CORE_STDLIB = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math",
    "operator", "types", "typing",
}  # fmt: skip
# Names of boards and of their layouts' libraries, and the only places that may say them.
BOARD_WORDS = re.compile(r"\b(openvino|calrt|sim board|simboard)\b|board\s*==|[\"']sim[\"']", re.IGNORECASE)
MAY_NAME_BOARDS = ("runtime", "package/pack", "cli", "simulate", "bench", "accept")
THREADING = {"threading", "multiprocessing", "concurrent.futures", "_thread", "queue"}
# Besides the executor and the tokenizing pool: boards' own threads, hashing before anything serves, and leaves.
MAY_THREAD = (
    "executor/", "service/tokenizing.py", "runtime/", "package/checksums.py", "package/sealed.py", "cli", "bench/",
    "simulate/", "progress.py",
)  # fmt: skip
TORCH_PROCESS, TORCH_MODULE = "package/pack/torch_worker.py", "torch_worker"
FILE_LINES_MAX, FUNCTION_LINES_MAX = 400, 70


def _ring(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _imports(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in the file; `from calserve.x import y` gives x and x.y."""
    package = ["calserve", *path.relative_to(SOURCE).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _ours(path: Path) -> Iterator[str]:
    for module in _imports(path):
        if module.startswith("calserve."):
            yield module.removeprefix("calserve.")


def _allows(allowed: tuple[str, ...], module: str) -> bool:
    # `from calserve.runtime import contract` also yields the bare ring, which by itself gives nothing away.
    return any(module == entry or module.startswith(entry + ".") or entry.startswith(module + ".") for entry in allowed)


@pytest.mark.parametrize("path", [p for p in FILES if _ring(p) in RINGS], ids=_name)
def test_ring_imports_only_what_it_may(path: Path) -> None:
    ring = _ring(path)
    modules = [module for module in _ours(path) if module.split(".")[0] in (*RINGS, *LEAVES, "cli")]
    allowed = MAY_IMPORT[ring] + MAY_ALSO_IMPORT.get(_name(path), ())
    wrong = [m for m in modules if m.split(".")[0] != ring and not _allows(allowed, m)]
    assert not wrong, f"{_name(path)} imports {wrong}"


@pytest.mark.parametrize("path", [p for p in FILES if _ring(p) in LEAVES], ids=_name)
def test_leaf_imports_no_other_leaf(path: Path) -> None:
    others = [m for m in _ours(path) if m.split(".")[0] in (*LEAVES, "cli") and m.split(".")[0] != _ring(path)]
    assert not others, f"{_name(path)} imports {others}"


@pytest.mark.parametrize("path", [p for p in FILES if _name(p).startswith("simulate/oracle/")], ids=_name)
def test_oracle_of_the_simulation_shares_no_code_with_what_it_judges(path: Path) -> None:
    """A mistake that both make is seen by neither: of ours it may use itself, the board's account and its formula."""
    allowed = ("simulate.oracle", "runtime.sim.facts", "runtime.sim.oracle")
    wrong = [module for module in _ours(path) if not _allows(allowed, module)]
    assert not wrong, f"{_name(path)} imports {wrong}"


@pytest.mark.parametrize("path", [p for p in FILES if _ring(p) == "core"], ids=_name)
def test_core_uses_pure_standard_modules_only(path: Path) -> None:
    others = {module.split(".")[0] for module in _imports(path)} - CORE_STDLIB - {"calserve"}
    assert not others, f"{_name(path)} imports {others}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("open", "print", "hash", "id")), (
            f"{_name(path)}:{node.lineno}"
        )


@pytest.mark.parametrize("path", [p for p in FILES if not _name(p).startswith(MAY_NAME_BOARDS)], ids=_name)
def test_board_names_stand_nowhere_above_the_contract(path: Path) -> None:
    """Code only: a docstring may explain by example."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    found = BOARD_WORDS.findall(ast.unparse(tree))
    assert not found, f"{_name(path)} names {found}"


@pytest.mark.parametrize("path", [p for p in FILES if not _name(p).startswith(MAY_THREAD)], ids=_name)
def test_threads_stand_only_where_they_may(path: Path) -> None:
    used = set(_imports(path)) & THREADING
    assert not used, f"{_name(path)} imports {used}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_rooms_are_small(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.count("\n")
    assert lines <= FILE_LINES_MAX, f"{_name(path)} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{_name(path)}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{_name(path)} has no docstring"


def test_every_folder_is_a_ring_a_leaf_or_the_root() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and list(path.rglob("*.py"))}
    assert folders <= {*RINGS, *LEAVES, "cli"}


def test_torch_is_imported_in_its_own_process_alone() -> None:
    heavy = {"torch", "transformers", "optimum"}
    assert [_name(path) for path in FILES if {m.split(".")[0] for m in _imports(path)} & heavy] == [TORCH_PROCESS]
    importing = [_name(path) for path in FILES if any(TORCH_MODULE in module for module in _ours(path))]
    assert importing == []  # it is started by name, in a process of its own


def test_core_stdlib_list_names_real_modules() -> None:
    assert set(sys.stdlib_module_names) | {"__future__"} >= CORE_STDLIB
