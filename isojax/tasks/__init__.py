"""Tasks: problems, prompts, and judges of answers. base.TASKS lists them."""
