"""What a command costs before it does anything: `mlx --help` beside bare Python and MLflow's own CLI."""

import statistics
import sys
from pathlib import Path

from measure import in_turn, spread, table

BUDGET = 0.25  # CPU seconds


def main() -> None:
    bin_folder = Path(sys.executable).parent
    costs = in_turn(
        {
            "python -c pass": [sys.executable, "-c", "pass"],
            "mlx --help": [str(bin_folder / "mlx"), "--help"],
            "mlx --version": [str(bin_folder / "mlx"), "--version"],
        }
    ) | in_turn({"mlflow --version": [str(bin_folder / "mlflow"), "--version"]}, rounds=3)
    floor = statistics.median(cost.cpu for cost in costs["python -c pass"])
    rows = []
    for name, runs in costs.items():
        cpu = [cost.cpu for cost in runs]
        rows.append(
            (name, spread(cpu), f"{statistics.median(cpu) / floor:.1f}", f"{max(c.memory for c in runs):.0f}")
        )
    table(
        f"Start-up, CPU seconds (budget of mlx: {BUDGET})",
        rows,
        ("command", "min / median / max", "x bare Python", "MB"),
    )


if __name__ == "__main__":
    main()
