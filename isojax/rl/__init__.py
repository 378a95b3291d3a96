"""The loss and the update. Letters that types.py lacks or uses otherwise:

  B  rollouts of a step        P  problems; in Batch, prompt slots
  N  rollouts of the largest group; in packing, tokens of a microbatch
  M  selected rollouts of the largest group      R  rows of a microbatch
  m  rollouts to select in a group               c  positions of a chunk in head
"""
