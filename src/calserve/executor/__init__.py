"""One board's threads, buffers, sequences, and the steps between them.

Owns: the engine, completion and lifecycle threads (bodies of some twenty lines that decide nothing), the step
functions they call, host buffer leases, and every `Sequence` once it was submitted. Must not know: HTTP,
asyncio, files of packages, or which board it drives. Decisions are `core`'s; this ring carries them out and
reports facts.
"""
