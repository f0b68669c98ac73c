"""Tools that a policy may call: the format of calls, Python functions, MCP servers; start at `calls.py`."""
