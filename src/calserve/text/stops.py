"""Stop strings: finding the first one in a stream of text, and letting nothing of it out.

Owns the automaton of Aho and Corasick ("Efficient string matching", CACM 1975) over characters. Must not know
tokens. One automaton, which nothing changes after it was made, serves all streams with the same stops, from any
thread; a matcher belongs to one stream.
"""

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

# Automata kept for the next stream with the same stops: the choices of one request come together. A character of a
# stop takes some 250 bytes here, so this is at most 16 MB of stops of 4,096 characters together.
KEPT_AUTOMATA = 16


class Match(NamedTuple):
    """What a push let out, and the stop string it completed, if any."""

    text: str
    stop: str | None = None


class StopMatcher:
    """Passes text through until a stop string is complete.

    The match is the first to be *complete*, whatever the cut of the text into pieces; of several that end
    at the same character, the longest. Its text, and all that follows, stays inside.

    Invariants: `_held` is the longest end of the text so far that begins some stop string, and `_node`
    stands for it. Time is linear in the text: each character moves the automaton once, amortised.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Args: stops: any number of strings, none of them empty."""
        assert all(stops), "an empty stop string stops everything"
        self._automaton = _automaton(tuple(stops))
        self._node = 0
        self._held = ""
        self.stop: str | None = None

    def push(self, text: str) -> Match:
        """Take in more text; after a stop nothing comes out any more."""
        if self.stop is not None:
            return Match("", self.stop)
        self._node, end, stop = self._automaton.scan(self._node, text)
        if stop is not None:
            self.stop = stop
            out = (self._held + text[:end])[: -len(stop)]
            self._held = ""
            return Match(out, stop)
        whole = self._held + text
        released = len(whole) - self._automaton.depth(self._node)
        self._held = whole[released:]
        return Match(whole[:released])

    def flush(self) -> str:
        """The text still held back, at the end of a stream that did not stop."""
        out, self._held, self._node = self._held, "", 0
        return out


class _Automaton:
    """The trie of the stops; each node has a failure link and the longest stop ending there."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._stops: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._failures = [0] * len(self._children)
        self._link()
        firsts = "".join(map(re.escape, self._children[0]))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def depth(self, node: int) -> int:
        return self._depths[node]

    def scan(self, node: int, text: str) -> tuple[int, int, str | None]:
        """Walk over `text` from `node`; gives the node reached, how far, and the stop completed there."""
        children, failures, stops = self._children, self._failures, self._stops
        position = 0
        while position < len(text):
            if node == 0:
                # Nearly all text begins no stop string: skip it at the speed of `re`.
                found = self._first.search(text, position)
                if found is None:
                    return 0, len(text), None
                position = found.start()
            character = text[position]
            position += 1
            while node and character not in children[node]:
                node = failures[node]
            node = children[node].get(character, 0)
            if stops[node] is not None:
                return node, position, stops[node]
        return node, position, None

    def _insert(self, stop: str) -> None:
        node = 0
        for character in stop:
            child = self._children[node].get(character)
            if child is None:
                child = self._children[node][character] = len(self._children)
                self._children.append({})
                self._depths.append(self._depths[node] + 1)
                self._stops.append(None)
            node = child
        self._stops[node] = stop

    def _link(self) -> None:
        """Failure links breadth first; a node without a stop of its own takes that of its failure."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            for character, child in self._children[node].items():
                failure = self._failures[node]
                while failure and character not in self._children[failure]:
                    failure = self._failures[failure]
                self._failures[child] = self._children[failure].get(character, 0)
                self._stops[child] = self._stops[child] or self._stops[self._failures[child]]
                queue.append(child)


@lru_cache(KEPT_AUTOMATA)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    """A microsecond and more for each character; of two threads that ask at once, both may build."""
    return _Automaton(stops)
