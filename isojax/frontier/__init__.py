"""Fits of the evaluations of many runs. Letters:

  B  rollouts of a step: Bp problems, n rollouts of each
  C  compute of an evaluation, on the chosen axis
  D  bootstrap draws; draw 0 is the data itself. In the text of a study:
     training problems
  E  evaluations of a run  G  values of C on the frontier
  J  candidates for theta  K  configurations (Bp, n); arms of a race
  M  updates, as the axis  N  tested n
  P  parameters of a curve           Q  problems of an evaluation
  R  runs                            S  runs of a recipe or configuration
  k  steepness; samples of an evaluation

A race has H shapes of a curve, which are S rises x L slopes x M stretches, and
forecasts rewards at T values of C.
"""
