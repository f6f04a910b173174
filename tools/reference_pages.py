"""Writes the pages of docs/reference that come from the code: the command line, and HTTP.

python tools/reference_pages.py            write them
python tools/reference_pages.py --check    write nothing, exit 1 if one is stale
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from turngate.cli.commands import registered
from turngate.server import Limits
from turngate.server._openapi import openapi
from turngate.server._problems import TITLES

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"

COMMAND_LINE = """\
# Command line

`turngate COMMAND`, also `python -m turngate COMMAND`. This page is generated from the
commands themselves (`make reference`).

| exit code | meaning |
| --- | --- |
| 0 | everything holds, or the command did what it was asked to do |
| 1 | something is violated, or stale |
| 2 | bad input; one line on standard error says what would be right |
| 3 | unknown: a limit was reached, or nothing was tested |
| 70 | an error of Turngate itself |
| 130 | interrupted |

Text from others, such as run ids and file names, is printed on one line, with unprintable
characters escaped. The pages of `--report` and `--html` are one file each and ask the network for nothing.
Long work shows progress on a terminal, and is quiet in a pipe.
"""

HTTP = """\
# HTTP and events

This page is generated (`make reference`) from the OpenAPI document, which a server has at `/openapi.json`.
[Annex C](../spec/http.md) of the specification says how the calls and the event stream behave.

The quick tour, with a server on its default port:

```sh title="excerpt"
curl localhost:8765/v1/sessions/s/runs -H 'Content-Type: application/json' \\
  -d '{"prompt": "tea", "run_id": "r1"}'
curl 'localhost:8765/v1/runs/r1?wait=60'              # waits for the RunComplete
curl -X POST localhost:8765/v1/sessions/s/cancel      # covers what was accepted before it
curl -N localhost:8765/v1/events                      # everything that happens, as server-sent events
```
"""


def command_line() -> str:
    """Return the page about the commands."""
    parts = [COMMAND_LINE]
    for name, command in registered().items():
        module, _, attribute = command.target.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        context = click.Context(
            found, info_name=f"turngate {name}", terminal_width=100, max_content_width=100
        )
        shown = "\n".join(line.rstrip() for line in found.get_help(context).splitlines())
        parts.append(f"\n## {name}\n\nExtra `turngate[{command.extra}]`.\n\n```text\n{shown}\n```\n")
    return "".join(parts)


def http() -> str:
    """Return the page about the calls."""
    document = openapi("", Limits(), token=False)
    parts = [HTTP, "\n## Calls\n"]
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            parts.append(f"\n### {method.upper()} {path}\n\n{call['summary']}.\n")
            parts += _parameters(call)
            parts += _answers(call)
    parts.append("\n## Events\n\nThe `data` of each event, by its name.\n")
    stream = document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    parts.append("\n| event | data |\n| --- | --- |\n")
    parts += [
        f"| `{name}` | [{_name(ref)}](#{_name(ref).lower()}) |\n" for name, ref in stream["x-events"].items()
    ]
    parts.append("\n## Bodies\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    parts.append("\n## Problems\n\n| status | name | meaning |\n| --- | --- | --- |\n")
    parts += [f"| {status} | `{name}` | {title} |\n" for name, (status, title) in TITLES.items()]
    return "".join(parts)


def _parameters(call: dict[str, Any]) -> Iterator[str]:
    if "requestBody" in call:
        name = _name(call["requestBody"]["content"]["application/json"]["schema"])
        yield f"\nBody: [{name}](#{name.lower()}).\n"
    if call.get("parameters"):
        yield "\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |\n"
        for each in call["parameters"]:
            meaning = each.get("description") or each["schema"].get("description", "")
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {meaning} |\n"


def _answers(call: dict[str, Any]) -> Iterator[str]:
    yield "\n| answer | meaning |\n| --- | --- |\n"
    for status, answer in call["responses"].items():
        content = answer.get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        body = f" [{_name(schema)}](#{_name(schema).lower()})" if "$ref" in schema else ""
        yield f"| {status} | {' '.join(answer['description'].split())}{body} |\n"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n\n{' '.join(schema.get('description', '').split())}\n".replace("\n\n\n", "\n")
    if schema.get("properties"):
        yield "\n| field | type |\n| --- | --- |\n"
        required = schema.get("required", [])
        for field, kind in schema["properties"].items():
            yield f"| `{field}` | {_type(kind)}{'' if field in required else ', optional'} |\n"


def _name(schema: dict[str, str]) -> str:
    return schema["$ref"].rpartition("/")[2]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"[{_name(schema)}](#{_name(schema).lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    kind = str(schema.get("type", "any JSON"))
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}))}"
    names = {"minLength": "not empty", "maxLength": "at most {} characters", "maxItems": "at most {}"}
    names |= {"minimum": "from {}", "maximum": "up to {}"}
    limits = [text.format(schema[key]) for key, text in names.items() if key in schema]
    return ", ".join([kind, *limits])


def pages() -> dict[Path, str]:
    """Return every generated page."""
    return {FOLDER / "command-line.md": command_line(), FOLDER / "http.md": http()}


def main() -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(FOLDER.parent.parent)} is stale: make reference")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], "utf-8")
        print(f"wrote {path.relative_to(FOLDER.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
