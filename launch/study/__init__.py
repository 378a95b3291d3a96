"""The study of n*(C) on the embedded policy, which docs/study.md reports.

n is the rollouts per problem, Bp the problems of a step, C the rollouts of a
run, D its training problems. L is {part: its Ledger}. Axes: S seeds, E
evaluations, Q validation problems, U thinned updates of a ledger.
"""
