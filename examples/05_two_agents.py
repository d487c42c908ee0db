"""Two agents on a table of traffic accidents: one reads files and runs no code, the other runs code and sees no files.

Set AGENT_TOOLS_MODEL, and where the model is (OPENAI_BASE_URL, OPENAI_API_KEY or DASHSCOPE_API_KEY), to ask a real one.
"""

import tempfile
from pathlib import Path

from data.make_traffic_accidents import make

from agent_tools import settings
from agent_tools.agents import TwoAgents
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply

PROMPT = """Use the file traffic_accidents.csv for your analysis. Its columns:
accidents: number of recorded accidents; traffic_fine_amount: in 1,000 USD; traffic_density: 0 (low) to 10 (high);
traffic_lights: proportion in the area, 0 to 1; pavement_quality: 0 (very poor) to 5 (excellent);
urban_area: urban (1) or rural (0); average_speed: km/h; rain_intensity: 0 (none) to 3 (heavy);
vehicle_count: in thousands; time_of_day: 0 to 24."""

ANALYSES = {
    "What factors contribute the most to accident frequency?": """
from sklearn.ensemble import RandomForestRegressor
table = pd.read_csv('traffic_accidents.csv')
features = table.drop(columns='accidents')
forest = RandomForestRegressor(60, max_depth=12, random_state=0).fit(features, table.accidents)
pd.Series(forest.feature_importances_, features.columns).sort_values(ascending=False).round(3)
""",
    "Which areas are at the highest risk of accidents?": """
from sklearn.cluster import KMeans
traits = ['urban_area', 'traffic_density', 'rain_intensity', 'pavement_quality']
scaled = (table[traits] - table[traits].mean()) / table[traits].std()
table['area'] = KMeans(5, n_init=5, random_state=0).fit_predict(scaled)
table.groupby('area')[['accidents', *traits]].mean().sort_values('accidents', ascending=False).round(2)
""",
    "How does the fine amount influence the number of accidents?": """
from sklearn.linear_model import LinearRegression
alone = LinearRegression().fit(table[['traffic_fine_amount']], table.accidents).coef_[0]
others = ['traffic_density', 'traffic_lights', 'pavement_quality', 'urban_area', 'rain_intensity']
given = LinearRegression().fit(table[['traffic_fine_amount', *others]], table.accidents).coef_[0]
print(f'accidents for each further 1,000 USD: {alone:+.2f} alone, {given:+.2f} with the other factors held fixed')
""",
    "Can we determine the optimal fine amount to reduce accident rates?": """
steps = pd.cut(table.traffic_fine_amount, np.arange(0.5, 10.1, 1))
curve = table.groupby(steps, observed=True).accidents.mean()
curve.plot(marker='o', title='Accidents by fine'); plt.tight_layout(); plt.show()
pd.DataFrame({'accidents': curve.round(2), 'saved by this step': (-curve.diff()).round(2)})
""",
    "Do higher fines correlate with lower average speeds or fewer accidents?": """
table[['traffic_fine_amount', 'average_speed', 'accidents']].corr(method='spearman').round(3)
""",
}


def scripted() -> tuple[ScriptedModel, ScriptedModel]:
    """Models that say what a real one might; what they call is really done."""
    reading = ScriptedReply(calls=[ScriptedCall("file_access", {"path": "traffic_accidents.csv"})])
    reader = [
        reading,
        "traffic_accidents.csv is in your working directory: 8,756 rows, 10 numeric columns, none missing.",
    ]
    coder = []
    for code in ANALYSES.values():
        coder += [
            ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": code})]),
            "The output above answers it.",
        ]
    return ScriptedModel(reader), ScriptedModel(coder)


model = settings.model_name()
print(f"The model is {model}.\n" if model else "No model is set: scripted ones answer; files and code are real.\n")
reader, coder = (model, model) if model else scripted()

with tempfile.TemporaryDirectory() as folder:
    make(Path(folder, "traffic_accidents.csv"))
    with TwoAgents(reader, coder, root=folder) as analysts:
        print(analysts.prepare(PROMPT), "\n")
        for question in ANALYSES:
            before = len(analysts.code_agent.messages)
            answer = analysts.ask(question)
            print(f"# {question}\n")
            for message in analysts.code_agent.messages[before:]:
                if message.role == "function":
                    print(message.text, "\n")
            print(answer, "\n")
