"""Tasks: problems, prompts, and judges of answers. base.TASKS lists them.

Letters are those of isojax/types.py, except D, the training problems.
"""
