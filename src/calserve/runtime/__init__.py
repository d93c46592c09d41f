"""Boards behind one contract.

Owns: `contract.py` (what a board is), `encoding.py` (a job description into tensors), `errors.py` (codes 0-29
and what they mean), and one folder per board. Must not know: requests' text, tenants, HTTP, scheduling. It
imports `core` for the job description and nothing else of ours. No name of a board stands outside this ring,
`package/pack`, `cli` and `simulate`.
"""
