"""Programs that the engine runs inside workspaces; they see nothing of the engine."""
