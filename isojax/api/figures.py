"""Figures that a notebook shows without pyplot."""

import io


def shown(figure):
  """A matplotlib figure with the method by which a notebook shows it."""
  def png() -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()

  figure._repr_png_ = png
  return figure
