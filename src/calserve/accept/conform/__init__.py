"""Conformance: every capability of a board run over the contract with one package, and what was seen written down.

Owns: the proofs, the naive user of the contract that runs them, and `calserve-conformance/v1`. Must not know: which
board it drives, files of a package, requests. Life: `run_conformance` takes an open board, runs proof after proof,
each on sessions of its own, and gives one record; `claims` says what a server may do with it.
"""
