"""Deterministic simulation: the production core and executor steps against the simulated board, on virtual time.

Owns: the world (a clock and what is due), a server process made of production steps without its threads, the
clients, the oracle, the soak and its records. A leaf: nothing imports it, and it reaches into nothing that a thread
would not reach. Life of a run: a plan is drawn from a seed, eras of server processes live on one device, the oracle
judges, the record tells.
"""
