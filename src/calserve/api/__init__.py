"""OpenAI's HTTP interface, health and metrics routes.

Owns: routes, bodies and their checks, the error table, the shape of every answer, server-sent events. It imports
`service` only, and of that only values and calls: no scheduling, tokens or boards.

Must not know: which board or package serves, how a request is scheduled, or any name of a chip, path or address: none
of these may reach an ordinary route. Every way in is closed by default: a path that is not listed is a 404.
"""
