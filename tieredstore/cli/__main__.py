"""``python -m tieredstore.cli``: the command line without its script being installed."""

from tieredstore.cli.app.entry import run

if __name__ == "__main__":
    run()
