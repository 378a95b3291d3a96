"""The study in docs/study.md: which n for a budget C, on countdown-tiny.

A part of the study is a grid of runs; its ledger stores what they recorded. An
arm is the runs of one recipe. n is the rollouts per problem, Bp the problems of
a step, C the rollouts of a run, D its training problems. L is {part: Ledger}.
Axes: S seeds, E evaluations, Q validation problems, U ranges of updates.
"""
