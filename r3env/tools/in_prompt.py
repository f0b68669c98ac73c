"""Tools for a chat template that has none: described in the first user turn, results in user turns."""

import json
from collections.abc import Sequence

from r3env.tools.results import Schema, ToolResult, name_of

_FORM = """You can call functions before you answer. There is one a line, with what it does and takes:
{functions}
To call one, write this and nothing else, and wait for its result:
<tool_call>
{call}
</tool_call>"""


def describe(schemas: Sequence[Schema]) -> str:
    """Return the text that stands before the problem: the functions, and how to call them.

    Args:
        schemas: of the functions, as `tools=` of a chat template has them.
    """
    functions = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    names = schemas[0]["function"].get("parameters", {}).get("properties", {})
    arguments = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: …" for name in names)
    call = f'{{"name": {json.dumps(name_of(schemas[0]))}, "arguments": {{{arguments}}}}}'
    return _FORM.format(functions=functions, call=call)


def result_turn(results: Sequence[ToolResult]) -> dict[str, str]:
    """Return the user turn that has the results of a response's calls, in their order."""
    texts = (f"<tool_response>\n{result.text}\n</tool_response>" for result in results)
    return {"role": "user", "content": "\n".join(texts)}
