"""`python -m leval_harness`: the same as the `leval-harness` command."""

from leval_harness.cli.main import main

if __name__ == "__main__":
    main()
