"""Tasks: problems, prompts, and judges of answers. base.TASKS has every task.

Letters are those of isojax/types.py; D is the number of training problems.
"""
