"""Labels of workspaces that mean something: `tclone vmrun` finds its machines and their snapshots by them."""

from __future__ import annotations

# How a machine's label begins, and what stands between a snapshot's name and its machine's.
MACHINE, SNAPSHOT = "machine ", ": snapshot of "


def is_reserved(label: str) -> bool:
    """Whether `tclone vmrun`, which sees everybody's workspaces, would take one with this label for its own."""
    return label.startswith(MACHINE) or SNAPSHOT in label
