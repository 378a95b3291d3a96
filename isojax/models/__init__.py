"""The decoder, its checkpoints, and LoRA.

Letters are those of isojax/types.py, except: B rows of any batch, T tokens of a
row, L cache slots of a row, M pages of a row, l positions of a page, and in
paged_attention P pages of a pool.
"""
