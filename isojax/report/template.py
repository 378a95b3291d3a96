"""Fills the HTML templates of this folder; every value is escaped."""

import base64
import pathlib

import jinja2


def render(name: str, filters: dict, **values) -> str:
  """The page of a template; a variable without a value raises an error."""
  environment = jinja2.Environment(
      autoescape=True, extensions=["jinja2.ext.do"], trim_blocks=True,
      lstrip_blocks=True, undefined=jinja2.StrictUndefined)
  environment.filters |= filters | {
      "base64": lambda data: base64.b64encode(data).decode()}
  text = pathlib.Path(__file__).with_name(name).read_text("utf-8")
  return environment.from_string(text).render(values)
