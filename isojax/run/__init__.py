"""One run: config, setup, state, loop, step, rollouts, evaluation, output.

A stratum is a set of problems of one difficulty, in a file of launch.split.
Letters in addition to those of isojax/types.py:

  C  budget, rollouts      D  training problems    M  steps of a run
  P  problems of a batch   k  samples of a problem in an evaluation
"""
