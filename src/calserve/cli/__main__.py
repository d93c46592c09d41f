from calserve.cli.app import main

main()
