"""Makes bike_rentals.csv: two years of hourly rentals in an invented city. Seeded; needs nothing but Python."""

from __future__ import annotations

import csv
import math
import random
from datetime import datetime, timedelta
from pathlib import Path

START, DAYS, SEED = datetime(2023, 1, 1), 731, 20230101
COLUMNS = (
    "time",
    "season",
    "holiday",
    "weather",
    "temperature_c",
    "humidity_pct",
    "wind_kmh",
    "casual",
    "registered",
    "total",
)
HOLIDAYS = {(1, 1), (5, 1), (10, 3), (12, 24), (12, 25), (12, 26), (12, 31)}
SEASONS = ("winter", "spring", "summer", "autumn")
WEATHER_EFFECT = {"clear": 1.0, "cloudy": 0.85, "rain": 0.45, "snow": 0.2}


def main() -> None:
    random.seed(SEED)
    target = Path(__file__).with_name("bike_rentals.csv")
    with target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for hour in range(DAYS * 24):
            writer.writerow(row(START + timedelta(hours=hour), hour / (DAYS * 24)))
    print(f"{target.name}: {DAYS * 24:,} rows, {target.stat().st_size:,} bytes")


def row(time: datetime, progress: float) -> tuple[object, ...]:
    day_of_year = time.timetuple().tm_yday
    warmth = 10 - 11 * math.cos(2 * math.pi * (day_of_year - 20) / 365)
    temperature = warmth + 4 * math.sin(2 * math.pi * (time.hour - 9) / 24) + random.gauss(0, 2.5)
    weather = random.choices(list(WEATHER_EFFECT), (55, 27, 16, 6 if temperature < 2 else 0))[0]
    holiday = (time.month, time.day) in HOLIDAYS
    comfort = max(0.08, 1 - ((temperature - 22) / 26) ** 2) * WEATHER_EFFECT[weather] * (1 + 0.35 * progress)
    off = holiday or time.weekday() >= 5
    registered = 210 * comfort * (leisure(time.hour) if off else commute(time.hour)) * random.gauss(1, 0.12)
    casual = (95 if off else 35) * comfort * leisure(time.hour) * random.gauss(1, 0.2)
    casual, registered = max(0, round(casual)), max(0, round(registered))
    humidity = min(
        100, max(20, round(72 - temperature + (18 if weather in {"rain", "snow"} else 0) + random.gauss(0, 7)))
    )
    season = SEASONS[(time.month % 12) // 3]
    wind = round(abs(random.gauss(12, 7)), 1)
    return (
        *(f"{time:%Y-%m-%d %H:00}", season, int(holiday), weather, round(temperature, 1), humidity, wind),
        *(casual, registered, casual + registered),
    )


def commute(hour: int) -> float:
    return (
        0.12
        + 1.6 * math.exp(-(((hour - 8) / 1.3) ** 2))
        + 1.8 * math.exp(-(((hour - 17.5) / 1.7) ** 2))
        + leisure(hour) * 0.3
    )


def leisure(hour: int) -> float:
    return 0.05 + math.exp(-(((hour - 14.5) / 4.2) ** 2))


if __name__ == "__main__":
    main()
