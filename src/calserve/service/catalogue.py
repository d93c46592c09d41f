"""The model catalogue: which packages this server answers for, under which names.

Owns the mapping alias -> package, tokenizer, chat template. Must not know sessions' decisions: whether a model is
Ready is read from what the engine last said. Life: built once by the composition root; read everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from calserve.core.outcomes import Failure, FaultClass
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.text import ChatTemplate, Tokenizer


class PackageFacts(Protocol):
    """What the service reads of a package; `BoardPackage` has it."""

    @property
    def hash(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def profiles(self) -> tuple[int, ...]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


P_co = TypeVar("P_co", bound=PackageFacts, covariant=True)


@dataclass(frozen=True, slots=True)
class ServedModel(Generic[P_co]):
    """One name a client may use. template: None for a model that has no chat format."""

    alias: str
    package: P_co
    tokenizer: Tokenizer
    template: ChatTemplate | None


class Catalogue(Generic[P_co]):
    """Invariants: aliases are unique; a package hash names one package. Read-only after it was made."""

    def __init__(self, models: Iterable[ServedModel[P_co]]) -> None:
        self._models: dict[str, ServedModel[P_co]] = {}
        for model in models:
            assert model.alias not in self._models, f"two models answer to {model.alias}"
            self._models[model.alias] = model

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self._models)

    def find(self, alias: str) -> ServedModel[P_co] | None:
        return self._models.get(alias)

    def open_package(self, hash: str) -> P_co | Failure:
        """The package with this hash, for the executor's lifecycle thread."""
        for model in self._models.values():
            if model.package.hash == hash:
                return model.package
        return Failure("open", 4, FaultClass.ARTIFACT, f"no package {hash[:12]} in the catalogue")

    def context(self, alias: str, sessions: Sequence[SessionView]) -> int | None:
        """Longest prompt plus output the model takes now, in tokens; None before one of its sessions is up."""
        views = [view for view in sessions if view.model == alias and view.context_tokens > 0]
        return max((view.context_tokens for view in views), default=None)


def is_ready(alias: str, sessions: Sequence[SessionView]) -> bool:
    """Whether any session serves `alias` now."""
    return any(view.model == alias and view.state is GenerationState.READY for view in sessions)
