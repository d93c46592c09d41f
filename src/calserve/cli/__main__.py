"""`python -m calserve.cli`: the same as the `calserve` command."""

from calserve.cli import main

main()
