"""`python -m calserve.cli`: the same as the `calserve` command."""

from calserve.cli.app import main

main()
