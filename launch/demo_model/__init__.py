"""Makes a pretrained language model without a model hub."""
