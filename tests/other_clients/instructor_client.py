"""instructor: RESPONSES_TOOLS, which has the model call a function for the answer's form; no code is asked for."""

import instructor
import openai
from outcome import BASE_URL, FIRST, KEY, MODEL, report
from pydantic import BaseModel


class Answer(BaseModel):
    """The form of an answer."""

    text: str


client = instructor.from_openai(
    openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=instructor.Mode.RESPONSES_TOOLS
)
answer = client.responses.create(model=MODEL, input=FIRST, response_model=Answer, max_retries=0)
report(answer.text)
