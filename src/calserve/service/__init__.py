"""What a server is made of, short of HTTP.

Owns: the scheduler's configuration file, the model catalogue, the bounded tokenizing pool, the bridge between
asyncio and the engine, and the way from a checked request to a stream of text. It runs on the event loop; the only
threads it has are those of the tokenizing pool.

Must not know: HTTP, JSON bodies, status codes, which board is driven, or how a token is chosen. It never decides
admission or order: those are `core`'s, reached through the executor's inbox.
"""
