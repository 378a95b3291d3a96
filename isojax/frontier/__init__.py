"""Fits of the evaluations of many runs. Letters:

  B  rollouts of a step: Bp problems, n rollouts of each
  C  compute of an evaluation, on the chosen axis
  D  bootstrap draws; draw 0 is the data itself. In the text of a study:
     training problems
  E  evaluations of a run  G  values of C on the frontier
  J  candidates for theta  K  configurations (Bp, n), or cells
  M  updates, as the axis  N  tested n
  P  parameters of a curve           Q  problems of an evaluation
  R  runs                            S  runs of a recipe or configuration
  k  steepness; samples of each problem in an evaluation

The frontier has the configuration with the highest curve at each C. A point of
it is resolved if no curve beyond its own data could lead there (envelope.py).
"""
