"""Tasks: problems, prompts, and judges of answers. base.TASKS has every task.

From tokens to the reward that trains: rl/rewards.py:texts decodes an answer;
answer_extraction.extract takes the part that task.grader.answer names; the
grader (grader._grade) asks the judge of the task, `Task.judge` or a function of
the user; run/rollouts.py:with_verdicts leaves out answers without a verdict;
rl/rewards.py:shaped, called in run/step.py:select, adds bonus and penalties.
The records' `reward` is the mean of the verdicts, `shaped_reward` that of the
shaped rewards.

Letters are those of isojax/types.py; D is the number of training problems.
"""
