"""What an agent does at a workspace's desktop: mouse, keys, windows, clipboard. docs/reference/actions.md has the actions."""
