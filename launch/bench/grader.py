"""Times the grader of mathematical answers.

20,000 whole numbers and 4,000 ordinary answers (fractions, roots, sets,
intervals, matrices), all distinct, with 1 and with 2 processes; then 10,000
hostile answers (hand-written ones, and random LaTeX).
"""

import random
import resource
import time

from isojax.tasks import grader
from isojax.tasks.problem import Problem

BYTES_OF = 1024  # ru_maxrss counts KiB on Linux

# Inputs that made a symbolic judge hang, crash or use too much memory.
PATHOLOGICAL = [
    "9^{9^{9^9}}", "9^9^9^9", "10^{100000000}", "10^{10^{10}}",
    "2^{2^{2^{99}}}",
    "((10^{9999})^{9999})^{9999}", "9999^{9999}", "(1+\\sqrt2)^{9999}",
    "(x+1)^{9999}(x+2)^{9999}", "(x+y+z)^{999}", "100000000!", "(10^9)!",
    "((9!)!)!", "9!!!!!", "\\binom{99999999}{44444444}",
    "\\sum_{i=1}^{10^{12}} i^i", "\\prod_{i=1}^{99999999} i",
    "\\int e^{x^x} \\sin(x^x) dx", "\\lim_{x\\to0} x^{x^{x^x}}",
    "\\sin(\\sin(\\sin(\\sin(\\sin(\\sin(x))))))", "\\zeta(\\zeta(\\zeta(3)))",
    "\\det\\begin{pmatrix}" + "\\\\".join("&".join(
        f"x_{{{i}{j}}}" for j in range(7)) for i in range(7)
        ) + "\\end{pmatrix}",
    "\\begin{pmatrix}" + "&".join("1" * 90) + "\\end{pmatrix}^{9999}",
    "(" * 400 + "1" + ")" * 400, "{" * 999, "}" * 999, "[" * 5000,
    "|" * 400 + "x" + "|" * 400, "\\frac{" * 150 + "1" + "}{2}" * 150,
    "\\sqrt" * 150 + "2", "\\sqrt{" * 8 + "2" + "}" * 8, "x^" * 300 + "x",
    "-" * 900 + "1", "\\left(" * 100, "\\text{" * 100, "\\boxed{" * 100,
    "1" * 999, "1" * 100_000, "0." + "3" * 900, "1,000" * 190, "1," * 499 + "1",
    "9" * 200 + "^{9999}", "1/" * 300 + "1", "+".join("x" * 400),
    "\x00", "5\x00", "\x00" * 500, "\ud800", "5\ud800", "\u202e5", "𝟝", "٥",
    "5\u0301", "\n" * 900 + "5", "\\\\" * 400, "\\" * 999, "$" * 999, "%" * 500,
    "\\x" * 400, "&" * 500, "#" * 999, "__import__('os').abort()",
    "1e999999999", "1e-999999999", "0x" + "f" * 900, "inf", "nan", "-nan",
    "1/0", "0/0", "0^{0}", "0^{-1}", "\\infty-\\infty", "\\frac{0}{0}",
    "x = x = x = x = x", "x<x<x<x<x", "\\{" * 100 + "\\}" * 100,
    "\\{1, \\{2, \\{3, \\{4\\}\\}\\}\\}", "(1,(2,(3,(4,5))))",
    "\\emptyset\\cup\\emptyset", "\\pm\\pm\\pm\\pm\\pm\\pm\\pm\\pm 1",
    "a" * 900,
    "\\overline{" * 50, "0.\\overline{" + "142857" * 100 + "}",
    "1" + " 000" * 200,
]
FRAGMENTS = [
    "1", "2", "17", "999", "9999", "0", "0.5", ".", ",", "x", "y", "i", "e",
    "+", "-", "*", "/", "^", "^{", "_", "_{", "{", "}", "(", ")", "[", "]", "|",
    "!", "=", "<", ">", "\\le ", "\\frac{", "}{", "\\sqrt{", "\\sqrt[3]{",
    "\\sin ", "\\log ", "\\pi", "\\infty", "\\cdot ", "\\times ", "\\text{ cm}",
    "\\text{", "\\%", "%", "$", "\\{", "\\}", "\\cup ", "\\pm ",
    "\\sum_{i=1}^{9}",
    "\\int_0^1 ", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "\\left(",
    "\\right)", " ", " or ", "\x00", "\\boxed{", "10^{9999}", "\\binom{9}{4}",
]


def ordinary(count: int) -> list[tuple[str, str]]:
  """Returns (gold, answer) pairs as in benchmarks, half of them equal."""
  rng, forms = random.Random(0), [
      ("{a}", "{b}"), ("{a}", "{b}.0"), ("{a},000", "{b}000"),
      ("\\frac{{{a}}}{{7}}", "{b}/7"),
      ("{a}\\sqrt{{3}}", "\\sqrt{{3}}\\cdot {b}"),
      ("x^2+{a}x", "x(x+{b})"), ("({a},\\infty)", "x>{b}"),
      ("\\{{{a},-1\\}}", "-1, {b}"), ("{a}\\text{{ cm}}", "{b}"),
      ("\\begin{{pmatrix}}{a}\\\\2\\end{{pmatrix}}",
       "\\begin{{bmatrix}}{b}\\\\2\\end{{bmatrix}}")]
  pairs = []
  for i in range(count):
    gold, answer = forms[i % len(forms)]
    a = 2 + i // len(forms)
    b = a + rng.randrange(2)
    pairs.append((gold.format(a=a), answer.format(b=b)))
  return pairs


def integers(count: int) -> list[tuple[str, str]]:
  """Returns (gold, answer) pairs of whole numbers, half of them equal."""
  return [(str(i), str(i + i % 2)) for i in range(count)]


def hostile(count: int) -> list[tuple[str, str]]:
  """Returns (gold, answer) pairs: pathological answers, then random LaTeX."""
  rng = random.Random(0)
  answers = list(PATHOLOGICAL)
  while len(answers) < count:
    drawn = rng.choices(FRAGMENTS, k=rng.randrange(1, 25))
    answers.append("".join(drawn) if rng.random() < 0.7 else
                   rng.choice(PATHOLOGICAL)[:300] + "".join(drawn[:3]))
  golds = ["7", "\\frac{1}{2}", "x^2+1", "(1,2]", "\\{1,2\\}", "\\sqrt{2}"]
  return [(golds[i % len(golds)], answer) for i, answer in enumerate(answers)]


def row(name: str, pairs: list[tuple[str, str]], workers: int) -> dict:
  """Returns the result of judging (gold, answer) pairs with some processes."""
  cfg = grader.GraderConfig("math", "whole", workers, seconds=2.0,
                            step_seconds=3600.0)
  problems = [Problem(i, "", gold) for i, (gold, _) in enumerate(pairs)]
  with grader.opened(cfg, {}) as grade:
    start = time.perf_counter()
    graded = grade(problems, [answer for _, answer in pairs])
    seconds = time.perf_counter() - start
  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * BYTES_OF
  return {"answers": name, "processes": workers, "count": len(pairs),
          "seconds": seconds, "answers/s": len(pairs) / seconds,
          "correct": int(graded.correct_B.sum()), "lost": len(graded.lost),
          "peak MiB of a process": peak / 2**20}


def rows():
  """Yields a row for each set of answers; lost ones were too slow or large."""
  for workers in (1, 2):
    yield row("integers", integers(20_000), workers)
    yield row("ordinary", ordinary(4000), workers)
  yield row("hostile", hostile(10_000), 2)
