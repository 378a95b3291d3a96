"""From a budget to allocations and prices. Letters:

  Bp  problems of a step          n   rollouts of each      B  Bp * n
  m   of these n, trained on      C   rollouts of a run     G  shards of rows
  M   steps of a run, if each     D   training problems
      has one sampling round      n*  the best n at C

Suffixes of arrays: isojax/types.py.
"""
