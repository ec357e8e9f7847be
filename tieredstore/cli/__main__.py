"""``python -m tieredstore.cli``: run the command line even if its script is not installed."""

from tieredstore.cli.app.entry import run

if __name__ == "__main__":
    run()
