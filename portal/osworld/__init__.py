"""The server that OSWorld's clients expect inside a virtual machine, one for each workspace that has opted in (docs/reference/osworld.md)."""
