"""Proofs: runs over the contract that decide whether a capability may be used on this board with this package.

A leaf: it drives a board that `cli` hands in, through the contract alone, and writes down what it saw
(`calserve-evidence/v1` for two jobs in flight; `calserve-conformance/v1` for everything, see `conform`). Must not know:
requests, HTTP, scheduling. What counts as evidence, and what a server may do with it, are pure functions in `evidence`
and `claims`.
"""
