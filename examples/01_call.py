"""The shortest use: call the tool, get Markdown. Variables live from call to call."""

from agent_tools.tools import CodeInterpreter

with CodeInterpreter() as code_interpreter:
    print(code_interpreter.call('{"code": "print(2 + 2)"}'))
    code_interpreter.call("x = 42")
    print(code_interpreter.call("x / 0"))
    print(code_interpreter.call("import time; time.sleep(100)", timeout=1))
    print(code_interpreter.call("x"))
