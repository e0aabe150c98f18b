"""`python -m mlx_platform.cli`, for where the console script is not on the path."""

from mlx_platform.cli.entry import run

if __name__ == "__main__":
    run()
