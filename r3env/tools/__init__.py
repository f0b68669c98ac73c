"""Tools that a policy may call: how calls are written, functions in child processes, MCP servers; start at `calls.py`."""
