"""The sampler. Letters that it adds to those of isojax/types.py:

  B  items: the rollouts of a batch's groups     C  tokens of a chunk
  E  groups; in decode and interrupt, token ids  F  slots or pages to fill
  K  blocks of the vocabulary, in draw           M  pages of a slot
  P  problems; in cache, pages                   X  tokens of all in flight
  R  slots; in flight and Rollouts, items        W  sequences of a window

scheduler.py defines item, sequence and window, flight.py group and version.
"""
