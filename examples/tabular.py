"""Your own tables: a CSV file for each clinic; FedAvg against personal heads.

    python examples/tabular.py [folder of the result] [rounds]

The same from the command line:

    equipoise compare --task tables --data FOLDER --target ill --methods fedavg,fedper
"""

import csv
import sys
from pathlib import Path

import numpy as np

import equipoise as eq

CLINICS, PATIENTS = 8, 150


def write_clinics(folder: Path) -> None:
    """Age, blood pressure and a category; what they mean for illness differs a little from clinic
    to clinic.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for clinic in range(CLINICS):
        habits = rng.normal(0, 1)
        with open(folder / f"clinic-{clinic}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "pressure", "smoker", "ill"])
            for _ in range(PATIENTS):
                age, pressure = rng.normal(50 + 5 * habits, 12), rng.normal(130, 15)
                smoker = rng.choice(["never", "once", "now"])
                risk = (
                    (age - 50) / 12
                    + (pressure - 130) / 15
                    + habits * (smoker == "now")
                    + rng.normal(0, 0.5)
                )
                writer.writerow(
                    [round(age, 1), round(pressure, 1), smoker, "yes" if risk > 0 else "no"]
                )


def main(out: str = "runs/example-tabular", rounds: str = "30") -> None:
    clinics = Path(out) / "clinics"
    write_clinics(clinics)
    task = eq.Task.from_folder(clinics, target="ill")
    for method in ("fedavg", "fedper", "local"):
        run = eq.run(
            Path(out) / method, method=method, task=task, rounds=int(rounds), overwrite=True
        )
        print(f"{method:8} personal models: {100 * run.final.personal.acc:.1f} %")
    patients = {"age": [75.0, 35.0], "pressure": [150.0, 110.0], "smoker": ["now", "never"]}
    print("two new patients of clinic-3:", *run.predict(patients, client="clinic-3"))


if __name__ == "__main__":
    main(*sys.argv[1:])
