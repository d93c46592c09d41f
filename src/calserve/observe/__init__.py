"""What is seen from outside: metrics and logs.

Owns subscribers of the record of events and commands, which are called on the engine thread and must be quick, and
the process's log format. Must not know tokens, text, HTTP or boards. Nothing calls this ring for a decision: take it
away and the server runs the same.
"""
