"""The decoder, its checkpoints, and LoRA.

Letters are those of isojax/types.py, and: B rows of any batch, T tokens of a
row, L cache slots of a row, M pages of a row, P pages of a pool, l positions of
a page.
"""
