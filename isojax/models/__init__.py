"""The decoder, its checkpoints, and LoRA; letters are those of isojax/types.py.

B rows of any batch, T tokens and L cache slots of each.
"""
