"""Models' own action formats, and what each of them expects back. docs/reference/models.md has the tables."""
