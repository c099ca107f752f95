"""What cua's computer client asks of a computer: docs/reference/cua.md."""
