"""The node agent: a root daemon that owns workspaces, and the client others use to reach it."""

__version__ = "0.1.0"
