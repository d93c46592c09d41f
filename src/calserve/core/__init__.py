"""Every decision, and nothing else.

Owns: request, job, lane, KV and generation states; admission, fairness, batching, deadlines, drain and
recovery. One `Engine` per board is the only writer of all of it.

Must not know: clocks, threads, asyncio, randomness, numpy, files, tokens, text, or which board it is on.
It holds counts, never contents. Time comes in as `now_ns`; facts come in as events; orders go out as
commands. The same events at the same times give the same commands, byte for byte.
"""
