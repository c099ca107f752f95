"""What E2B's SDKs ask for, as far as they create, fork, drive and end sandboxes: docs/reference/e2b.md."""
