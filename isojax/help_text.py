"""The text of --help: from a command's docstring and its own flags."""

import re
import sys
import textwrap

from absl import flags

WORDS = ("--help", "-help", "-h", "-?", "--helpshort", "--helpfull")


def asked(argv: list[str]) -> str | None:
  """Returns the word that asks for help, if there is one before `--`."""
  words = argv[1:argv.index("--")] if "--" in argv else argv[1:]
  return next((word for word in words if word in WORDS), None)


def joined(doc: str) -> str:
  """Returns a docstring with each indented command on one line.

  A backslash at the end of a line continues a command. In a docstring that is
  not raw, Python has removed it and left a gap.
  """
  lines = []
  for line in textwrap.dedent(doc).replace("\\\n", " ").split("\n"):
    if line.startswith("  ") and "python -m" in line:
      line = "  " + re.sub(r"\s+", " ", line.strip())
    lines.append(line)
  return "\n".join(lines)


def example_of(doc: str) -> str:
  """Returns the first command in a docstring, on one line."""
  found = re.search(r"^  (.*python -m .*)$", joined(doc), re.MULTILINE)
  return found[1] if found else ""


def wrapped(line: str) -> str:
  """Returns a command in lines that a shell takes as one."""
  return " \\\n".join(textwrap.wrap(
      line, 78, initial_indent="  ", subsequent_indent="      ",
      break_long_words=False, break_on_hyphens=False))


def own_flags() -> list[flags.Flag]:
  """Returns the flags of this command: its module's first, no library's."""
  by_module = flags.FLAGS.flags_by_module_dict()
  ours = [name for name in by_module if name != sys.argv[0]
          and name.partition(".")[0] in ("isojax", "launch")]
  found = [flag for name in (sys.argv[0], *ours) if name in by_module
           for flag in by_module[name]]
  return sorted(found, key=lambda flag: flag.name != "config")  # that first


def flag_help(flag: flags.Flag) -> str:
  """Returns a flag with its description and default, wrapped."""
  name = f"[no]{flag.name}" if flag.boolean else flag.name
  default = (flag.default_as_str or "").strip("'")
  if default in ("", "false", "None"):
    default = ""
  elif default == "true":
    default = f" (default: --{flag.name})"
  else:
    default = f" (default: {default})"
  required = " (required)" if is_required(flag) else ""
  # Choices are one word, <a|b|c>: spaces let a line break between them.
  described = re.sub(r"<[^>\s]{60,}>", lambda m: m[0].replace("|", " | "),
                     flag.help)
  return textwrap.fill(
      f"--{name}: {described}{default}{required}", 80, initial_indent="  ",
      subsequent_indent="      ", break_long_words=False,
      break_on_hyphens=False)


def is_required(flag: flags.Flag) -> bool:
  return any("other than None" in validator.message
             for validator in flag.validators)


def help_text(doc: str, *, full: bool = False) -> str:
  """Returns what --help prints for a command.

  Args:
    doc: docstring of its module: what it does in at most two lines, an indented
      example that starts with `python -m`, and more paragraphs.
    full: also with the flags of libraries, as --helpfull.
  """
  example = example_of(doc)
  summary, *rest = joined(doc).strip().replace(
      f"  {example}\n", "", 1).split("\n\n")
  lines = [summary, "", "Example:", wrapped(example), "", "Flags:",
           *map(flag_help, own_flags()),
           "  --helpfull: also list the flags of the libraries."]
  for paragraph in filter(str.strip, rest):
    lines += ["", *(wrapped(line.strip()) if "  python -m" in line else line
                    for line in paragraph.strip("\n").split("\n"))]
  if full:
    lines += ["", "All flags:", flags.FLAGS.get_help()]
  return "\n".join(lines)
