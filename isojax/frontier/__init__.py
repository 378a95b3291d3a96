"""Fits of the evaluations of many runs. Letters:

  B  rollouts of a step    C  compute of an evaluation, on the chosen axis
  D  bootstrap draws; of a Study, training problems
  E  evaluations of a run  G  values of C on the frontier
  K  blocks                M  updates, as compute axis
  N  tested n              P  parameters of a curve
  Q  problems of an evaluation       R  runs         S  runs of a recipe
  k  steepness; samples of an evaluation
"""
