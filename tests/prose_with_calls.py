"""Answers that show a call, and make none: explanations, quotations, documentation. Nothing of them may run."""

from __future__ import annotations

CALL = '{"name": "python", "arguments": {"code": "print(1)"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
TAGS = '<invoke name="python">\n<parameter name="code">print(1)</parameter>\n</invoke>'
FUNCTION = "<function=python>\n<parameter=code>\nprint(1)\n</parameter>\n</function>"
BARS = "<|tool_call_begin|>functions.python:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
HARMONY = '<|channel|>commentary to=functions.python <|constrain|>json<|message|>{"code": "print(1)"}<|call|>'
PYTHONIC = 'python(code="print(1)")'
FORMS = {"JSON": CALL, "a tag": TAGGED, "tags": TAGS, "a function": FUNCTION, "bars": BARS, "sections": HARMONY}
DOCUMENTATION = {
    f"{name}, {form}": text.replace("CALL", call)
    for form, call in FORMS.items()
    for name, text in {
        "a fenced example": "# Calling tools\n\nA call looks like this:\n\n```\nCALL\n```\n\nThe result comes next.",
        "a fence with a language": "To call it, the model writes\n\n```xml\nCALL\n```\n",
        "a quotation": "Write `CALL` to run code.",
        "in a sentence": "The text CALL is read as a call by the server.",
        "words after it": "CALL\n\nThis is how the model calls the tool: the name first, then the arguments.",
        "a numbered list": "1. The model writes CALL\n2. The server runs it.\n3. The result is sent back.",
        "an example that ends the answer": "The following is an example of a call in this format:\n\nCALL",
    }.items()
}
EXPLANATIONS = {
    "JSON that is data": '{"answer": 42, "tool": "hammer"}',
    "JSON of a schema": '{"name": "python", "description": "Runs code", "parameters_schema": {"type": "object"}}',
    "JSON of a person": '{"name": "Alice", "age": 3}',
    "a language by name": '{"name": "python", "version": "3.13"}',
    "JSON and words": f"{CALL} is the call that I would make.",
    "words and JSON": f"I would call {CALL}",
    "words and JSON on its own line": f"I would send this:\n{CALL}",
    "a fence after words": f"I would send this:\n```json\n{CALL}\n```",
    "a call in Python": f"You can call {PYTHONIC} in your program.",
    "a call in Python at the end": f"To run it, write\n{PYTHONIC}",
    "a call in a program": f"```python\nresult = {PYTHONIC}\nprint(result)\n```",
    "a sentence that begins with the name": "python is a language; {1, 2} is a set in it.",
    "a name and parentheses": "python (the language) is popular.",
    "the token of code": "The token <|python_tag|> begins code in some templates.",
    "the token at the beginning": "<|python_tag|> is the token that begins code.",
    "a tag of the name": "<python> is no tag of HTML.",
    "a tag of the name around prose": "Use <python>some code here</python> for it.",
    "a prompt": "In the shell:\n\n>>> python\nis what you see.",
    "a session": ">>> print(1)\n1\n>>> exit()",
    "HTML": "<b>python</b> and <i>code</i>: <code>print(1)</code>",
    "HTML with the name": '<a name="python">The section on Python</a> has more.',
    "an element with the name": '<input name="python"> takes the code.',
    "XML": "<config>\n<language>python</language>\n<code>print(1)</code>\n</config>\nis the file.",
    "brackets": "[PYTHON] is what the header says, and [CODE] the next one.",
    "a link": "[python](https://python.org) has the documentation.",
    "a list of names": "['python', 'code', 'print(1)']",
    "a quoted tag in doubled bars": 'The text is:\n\n"<｜X｜calls>\n<｜X｜invoke name="python">\n" and nothing else.',
    "a call in brackets, and words": '[Calling tool: python({"code": "print(1)"})] is how it looks.',
    "a label and words": f"Tool call: {CALL} is what the model writes.",
    "a tag with a space": "< python is less than < code.",
    "a table": '| tool | arguments |\n|---|---|\n| python | {"code": "print(1)"} |',
    "a diff": '- {"name": "python"}\n+ {"name": "python3"}',
    "a template": '<tool_call>\n{"name": <function-name>, "arguments": <args-json>}\n</tool_call>',
    "a cut call": TAGGED[: TAGGED.index("print") + 3],
    "another function": TAGGED.replace("python", "other"),
    "a call beside another function": f"{TAGGED}\n{TAGGED.replace('python', 'other')}",
    "a tag around code, and words": "<tool_call>python\ncode\n<arg_value>print(1)</arg_value>\n is how it is written.",
    "two kinds of arguments": '{"name": "python", "arguments": {}, "input": {}}',
    "a word before the name": 'Use python {"code": "print(1)"}',
    "a colon before it": 'Use this: python {"code": "print(1)"}',
}
PROSE = {**DOCUMENTATION, **EXPLANATIONS}
