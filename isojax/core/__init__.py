"""What trainer and planner share; loads no jax. Letters:

  Bp, n, B  problems of a step, rollouts of each, Bp * n
  C  budget, rollouts    M  steps of a run          D  training problems
  P  problems of a step  Q  problems of an evaluation
  k  steepness of the law of n; samples of a problem in an evaluation
"""
