"""Tools that a policy may call: how calls are written, Python functions, MCP servers; start at `calls.py`."""
