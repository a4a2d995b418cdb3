"""`python -m sofed_flwr` is `sofed`."""

from sofed_flwr.cli.main import main

main()
