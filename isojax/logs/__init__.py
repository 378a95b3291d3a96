"""Reads logs of isojax and of other trainers. Letters:

  Bp  problems of a step       n  rollouts per problem   m  of n, trained on
  C   rollouts so far          D  training problems      M  updates
  k   samples per validation problem
"""
