"""The main job: a CSV of two years' bike rentals goes in, a table and a figure come out."""

from pathlib import Path

from agent_tools.tools import CodeInterpreter

CSV = Path(__file__).parent / "data" / "bike_rentals.csv"

CODE = """
rentals = pd.read_csv('bike_rentals.csv', parse_dates=['time'])
print(f'{len(rentals):,} hours from {rentals.time.min():%Y-%m-%d} to {rentals.time.max():%Y-%m-%d}\\n')

by_weather = rentals.groupby('weather')['total'].agg(['count', 'mean', 'max']).sort_values('mean', ascending=False)
print(by_weather.round(1), '\\n')

day = np.where(rentals.time.dt.dayofweek < 5, 'workday', 'weekend')
hourly = rentals.groupby([day, rentals.time.dt.hour])['total'].mean()

sns.set_theme()
fig, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
hourly.unstack(0).plot(ax=left, linewidth=2)
left.set(title='Rentals by hour (每小时租车量)', xlabel='hour', ylabel='mean rentals')
daily = rentals.resample('D', on='time').agg({'total': 'sum', 'temperature_c': 'mean'})
points, line = {'s': 8, 'alpha': .4}, {'color': 'crimson'}
sns.regplot(daily, x='temperature_c', y='total', order=2, scatter_kws=points, line_kws=line, ax=right)
right.set(title='Rentals by day and temperature (温度)', xlabel='mean temperature, °C', ylabel='rentals a day')
plt.tight_layout()
plt.show()

print('correlation of temperature and daily rentals:', round(daily.corr().iloc[0, 1], 3))
"""

with CodeInterpreter() as code_interpreter:
    execution = code_interpreter.run({"code": CODE}, files=[str(CSV)], timeout=60)
    print(execution.stdout)
    if execution.error:
        raise SystemExit(execution.error.text)
    print(f"It ran {execution.duration:.2f} s. As Markdown, for a model:\n")
    print(code_interpreter.call("daily.total.describe().round(0)"))
    for figure in execution.figures:
        print(f"\nFigure: {Path(figure).resolve()}")
