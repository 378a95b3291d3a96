"""A parser that checks a page and collects its text."""

from html import parser


class Page(parser.HTMLParser):
  """Text, links, tables and unclosed tags of a page."""

  VOID = {"meta", "img", "br", "source"}

  def __init__(self, page):
    super().__init__()
    self.open, self.text, self.links, self.tags = [], "", [], set()
    self.tables = []  # of rows of cells, the heads first
    self.feed(page)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    self.links += [value for key, value in attrs if key in ("src", "href")]
    if tag == "table":
      self.tables.append([])
    elif tag == "tr":
      self.tables[-1].append([])
    elif tag in ("th", "td"):
      self.tables[-1][-1].append("")
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if "style" not in self.open:
      self.text += data + "\n"
    if self.open and self.open[-1] in ("th", "td"):
      self.tables[-1][-1][-1] += data
