"""Makes traffic_accidents.csv: 8,756 invented observations of road traffic. Seeded; needs nothing but Python."""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

ROWS, SEED = 8_756, 20250131
COLUMNS = (
    "accidents",
    "traffic_fine_amount",
    "traffic_density",
    "traffic_lights",
    "pavement_quality",
    "urban_area",
    "average_speed",
    "rain_intensity",
    "vehicle_count",
    "time_of_day",
)


def make(target: Path) -> Path:
    """Write the table and return its path."""
    draw = random.Random(SEED)
    with target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(row(draw) for _ in range(ROWS))
    return target


def row(draw: random.Random) -> tuple[object, ...]:
    """Fines slow drivers down, less and less; density, speed and rain make accidents, lights prevent some."""
    urban = int(draw.random() < 0.55)
    hour = draw.uniform(0, 24)
    rush = max(0.0, 1 - min(abs(hour - 8.5), abs(hour - 17.5)) / 3)
    density = min(10.0, max(0.0, draw.gauss(3.2 + 2.2 * urban + 2.4 * rush, 1.4)))
    fine = draw.uniform(0.5, 10)
    lights = min(1.0, max(0.0, draw.gauss(0.25 + 0.35 * urban, 0.15)))
    pavement = min(5.0, max(0.0, draw.gauss(2.6 + 0.4 * urban, 1.1)))
    rain = min(3.0, max(0.0, draw.expovariate(1.1) - 0.3))
    speed = max(15.0, draw.gauss(96 - 34 * urban - 2.1 * density - 4.5 * rain - 9 * fine / (fine + 3), 7))
    vehicles = max(1, round(draw.gauss(20 + 26 * density * (0.6 + 0.4 * urban), 18)))
    risk = 2 + 1.9 * density + 0.055 * speed + 2.2 * rain - 1.1 * pavement - 4 * lights + 0.012 * vehicles
    accidents = max(1, round(draw.gauss(risk - 6 * fine / (fine + 3), 2.2)))
    measured = (fine, density, lights, pavement)
    return (
        accidents,
        *(round(x, 2) for x in measured),
        urban,
        round(speed, 1),
        round(rain, 2),
        vehicles,
        round(hour, 2),
    )


if __name__ == "__main__":
    made = make(Path(sys.argv[1] if len(sys.argv) > 1 else "traffic_accidents.csv"))
    print(f"{made}: {ROWS:,} rows, {made.stat().st_size:,} bytes")
