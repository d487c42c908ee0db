"""One call, in every form in which models write calls; and code that has what forms have."""

from __future__ import annotations

import json

TRICKY_CODES = (
    "df = df[~mask]",
    "df[[col]]",
    "x = a[[0]]",
    "df = df[~df[col]]",
    "v = d[KEY]\nprint(v)",
    "print(1)\nv = d[KEY]",
    "d[KEY] = 5\nprint(d)",
    "d[KEY]",
    "x",
    "x in {1, 2}",
    "if a <b> c:\n    print(1)",
    "y = a<b>c\nprint(1)",
    'payload = {"code": "print(2)"}',
    'config\n{"code": "print(2)"}',
    'print {"code": "print(2)"}',
    "print('it\\'s')  # it's",
    'html = """\n<div>\nhi</div>\n"""\nprint(html)',
    "print('\\033[31mred')",
)
"""Code with brackets, words and tags as tokens of templates have them."""


def written_calls(name: str, code: str) -> dict[str, str]:
    """The texts of models of all kinds that call a function with code, by the names of the forms."""
    arguments = json.dumps({"code": code})
    return {
        "harmony": f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
        "harmony, started": f"<|start|>assistant<|channel|>commentary to={name} json<|message|>{arguments}",
        "harmony, role first": f"<|start|>assistant to=functions.{name}<|channel|>commentary <|constrain|>json"
        f"<|message|>{arguments}<|call|>",
        "Kimi": f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        f"{arguments}<|tool_call_end|><|tool_calls_section_end|>",
        "GLM": f"<tool_call>{name}\n<arg_key>code</arg_key>\n<arg_value>{code}</arg_value>\n</tool_call>",
        "MiniMax": f'<minimax:tool_call>\n<invoke name="{name}">\n'
        f'<parameter name="code">{code}</parameter>\n</invoke>\n</minimax:tool_call>',
        "DeepSeek 3.1": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>"
        f"{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "DeepSeek R1": f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
        f"{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "DeepSeek 3.2": f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n<｜DSML｜parameter name="code" '
        f'string="true">{code}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "DeepSeek 3.2 with JSON": f'<｜DSML｜function_calls><｜DSML｜invoke name="{name}">\n'
        f"{arguments}\n</｜DSML｜invoke>",
        "Mistral": f"[TOOL_CALLS]{name}[ARGS]{arguments}",
        "Mistral with an id": f"[TOOL_CALLS]{name}[CALL_ID]abcDEF123[ARGS]{arguments}",
        "Mistral with an array": f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {arguments}, "id": "abcDEF123"}}]',
        "Mistral with an end": f'[TOOL_CALLS][{{"name": "{name}", "arguments": {arguments}}}]</s>',
        "Gemma 4": f'<|tool_call>call:{name}{{code:<|"|>{code}<|"|>}}<tool_call|>',
        "FunctionGemma": f"<start_function_call>call:{name}{{code:<escape>{code}<escape>}}<end_function_call>",
        "Granite": f'<|tool_call|>[{{"name": "{name}", "arguments": {arguments}}}]',
        "Phi": f'<|tool_call|>[{{"name": "{name}", "arguments": {arguments}}}]<|/tool_call|>',
        "Hunyuan": f'<tool_calls>[{{"name": "{name}", "arguments": {arguments}}}]</tool_calls>',
        "Nemotron": f'<TOOLCALL>[{{"name": "{name}", "arguments": {arguments}}}]</TOOLCALL>',
        "Seed": f"<seed:tool_call>\n<function={name}>\n<parameter=code>{code}</parameter>\n</function>\n"
        "</seed:tool_call>",
        "Claude": f'<function_calls>\n<invoke name="{name}">\n<parameter name="code">{code}</parameter>\n</invoke>\n'
        "</function_calls>",
        "Claude's tags": f'<antml:function_calls><antml:invoke name="{name}"><antml:parameter name="code">'
        f"{code}</antml:parameter></antml:invoke></antml:function_calls>",
        "Qwen3-Coder": f"<tool_call>\n<function={name}>\n<parameter=code>\n{code}\n</parameter>\n"
        "</function>\n</tool_call>",
        "Hermes": f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
        "Llama": f'<|python_tag|>{{"name": "{name}", "parameters": {arguments}}}<|eom_id|>',
        "Command A": f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "{name}", "parameters": '
        f"{arguments}}}\n]<|END_ACTION|>",
        "Command R": f'```json\n[\n    {{\n        "tool_name": "{name}",\n        "parameters": '
        f"{arguments}\n    }}\n]\n```",
        "Python": f"[{name}(code={code!r})]",
        "a fence": f'```json\n{{"name": "{name}", "arguments": {arguments}}}\n```',
    }


def bare_calls(name: str, code: str) -> dict[str, str]:
    """Forms in which the code stands as it is, between tokens alone."""
    return {
        "the token of code": f"<|{name}_tag|>{code}<|eom_id|>",
        "the token of code, no end": f"<|{name}_tag|>{code}",
        "a tag of the name": f"<{name}>\n{code}\n</{name}>",
        "sections": f"<|channel|>commentary to={name} code<|message|>{code}<|call|>",
        "sections, constrained": f"<|channel|>commentary to={name} <|constrain|>code<|message|>{code}<|call|>",
        "a fence": f"<tool_call>{name}\n```python\n{code}\n```\n</tool_call>",
        "a prompt": f">>>{name}\n{code}",
        "CDATA": f'<invoke name="{name}"><parameter name="code"><![CDATA[{code}]]></parameter></invoke>',
        "CDATA without an end": f'<invoke name="{name}">\n<parameter name="code"><![CDATA[\n{code}\n</parameter>\n'
        "</invoke>",
        "a namespace in symbols": f']<]x[>[<invoke name="{name}">\n]<]x[>[<code>{code}]<]x[>[</code>\n]<]x[>[</invoke>',
    }
