"""Measures: served against raw, raw against bare, and peers, in one interleaved run.

A leaf: it uses the rest and nothing uses it. Every part runs in a process of its own and waits, loaded and
idle, for its turn; what is compared is measured minutes apart at most, in alternation. `peers.py` and `bare.py`
name a vendor's library on purpose: they are what calserve is compared with.
"""
