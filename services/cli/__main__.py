"""`secagg` and `python -m services.cli`: where the command line begins.

The core, the accountants and the verifier are installed without what the services need; the command
is there all the same, and says so.
"""


def main() -> None:
    """Run the command line, or say what is not installed."""
    try:
        from services.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"services", "secagg", "dp", "fl"}:
            raise  # a bug of ours
        raise SystemExit(
            f"error: {error.name} is not installed; the command line needs secagg[services,train] "
            "(the verifier alone does not: python -m dp.verify)"
        ) from error


if __name__ == "__main__":
    main()
