"""The `tclone` command."""
