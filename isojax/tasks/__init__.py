"""Tasks: problems with answers, and graders, pure functions of text."""
