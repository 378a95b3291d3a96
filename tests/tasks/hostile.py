r"""Wrong answers that look right, by a seed, and how many a grader pays.

  python -m tests.tasks.hostile 100000

prints the share that isojax pays, and the share that math-verify alone pays.
"""

import collections
import random
import sys

from isojax.tasks import math

WORDS = ["wrong", "nope", "dozen", "halves", "thirds", "pairs", "or", "maybe",
         "almost", "less", "more", "times", "hundred", "million", "plus",
         "squared", "blue", "xyz"]
WRAPPERS = (
    "{}", "${}$", "$${}$$", r"\boxed{{{}}}", " {} ", r"\({}\)", "**{}**",
    "{}.", r"\left.{}\right.")
# gold -> wrong answers. a, b, c are different integers from 3 on, a < b < c; w
# is a word. m is a number of minutes.
PATTERNS = {
    "{a}": (
        "{b}", "-{a}", "{a} or {b}", "{b} or {a}", "{a}, {b}", "{b} {a}",
        "{a} {b}", "{a} {w}", "{a}{w}", r"{a}\text{{ {w}}}", "not {a}",
        r"\neq {a}", "{a}_8", "{a}={b}", "{b}={a}", "x={b}", "{a}<{b}",
        "{a}+{b}", "{a}-{b}", r"{a}\%", "{a}!", "nan", r"\infty", r"{a}\ldots",
        "{a}.{b}", "{a}:{m}", "[{a},{b}]", r"\{{{a},{b}\}}",
        r"{a}\text{{ or {b}}}",
        r"\pm {a}", "{a}^2", r"\sqrt{{{a}}}", "{a}e1", "{a}/{b}", "{a}{b}",
        "{a}|{b}", "{a};{b}", "{a} to {b}", "{a}x", r"\frac{{{a}}}{{1}}{b}.5",
        "{a}({b})", "--{a}", "({a},{a})", r"{a}\approx {b}", "0/0", "?", ""),
    r"\frac{{{a}}}{{{b}}}": (
        r"\frac{{{b}}}{{{a}}}", r"\frac{{{a}}}{{{c}}}", "{a}.{b}", "{a}",
        r"\frac{{{a}}}{{{b}}}{c}.5", r"\frac{{{a}}}{{{b}}}2.5",
        r"\frac{{{a}}}{{{b}}} {c}", r"\frac{{{a}}}{{{b}}} {w}",
        r"\frac{{{a}}}{{{b}}}\text{{ {w}}}", r"-\frac{{{a}}}{{{b}}}",
        r"\frac{{{a}}}{{{b}}} \text{{ or }} {c}", "{a},{b}",
        r"{a}\frac{{{a}}}{{{b}}}"),
    "({a},{b})": (
        "({b},{a})", r"\{{{a},{b}\}}", "[{a},{b}]", "{a},{b}", "({a},{b},{c})",
        "({a},{c})", "({a},{b}),({c},{a})", "({a},{b}]", "(-{a},{b})", "({a})",
        "({a},{b}) {w}", "not ({a},{b})", "y={a},x={b},z={c}"),
    r"\{{{a},{b}\}}": (
        "({a},{b})", "({b},{a})", r"\{{{a}\}}", r"\{{{a},{b},{c}\}}",
        "[{a},{b}]", "({a},{b}]", r"\{{{a},{c}\}}", r"\{{({a},{b})\}}", "{a}",
        r"\{{{a},{b}\}} {w}", r"\{{-{a},{b}\}}"),
    "x={a},y={b}": (
        "x={b},y={a}", "y={a},x={b}", "({b},{a})", "{a},{b}", "x={a}",
        "{b},{a}",
        "x={a},y={b},z={c}", "x={a},y={c}", "x=-{a},y={b}", r"\{{{b},{a}\}}",
        "(y,x)=({a},{b})", "x={a},z={b}", "{a}"),
    "0": ("not 0", "{w}0", "0 nope", "{w}*0", "{a}", "0={a}", "x={a}", "0,{a}",
          "0 or {a}", r"0\text{{ or {w}}}", "0.{a}", r"\emptyset", "not=0",
          "0!", "1e-2", r"\frac{{0}}{{0}}", "10^{{-{c}}}", "0.00000000{a}"),
    r"\frac{{2^{{{b}}}}}{{2^{{{a}}}}}": (
        "10^{{-{c}}}", r"\frac{{1}}{{{b}!}}", "0", "2^{{-{c}}}",
        r"\frac{{2^{{{a}}}}}{{2^{{{b}}}}}"),
    r"\frac{{1}}{{{b}!}}": ("10^{{-{c}}}", r"\frac{{1}}{{{a}!}}", "0", "0.0"),
    "10:{m}": ("{m}:10", "10:0{a}", "1{m}", "10", "11:{m}", "10.{m}",
               r"\frac{{10}}{{{m}}}", "10/{m}", "10:{m} {w}", "20:{m}"),
    "[{a},{b})": ("({a},{b}]", "[{a},{b}]", "({a},{b})", "[{a},{c})",
                  r"\{{{a},{b}\}}", "[{b},{a})", r"[{a},\infty)", "{a}"),
    "x^2+{a}x+{b}": ("x^2+{b}x+{a}", "x^2-{a}x+{b}", "2x+{a}", "{a}x+{b}",
                     "x^3+{a}x+{b}", "x^2+{a}x+{b}+{c}", "y^2+{a}y+{b}", "x",
                     "x^2+{a}x={b}", "x^2+{a}x+{b} {w}"),
}


def pairs(count: int, seed: int):
  """(pattern, gold, wrong answer), `count` of them."""
  draw = random.Random(seed)
  for _ in range(count):
    gold = draw.choice(list(PATTERNS))
    wrong = draw.choice(PATTERNS[gold])
    a, b, c = sorted(draw.sample(range(3, 60), 3))
    values = {"a": a, "b": b, "c": c, "w": draw.choice(WORDS),
              "m": draw.randrange(12, 60)}
    yield f"{gold} <- {wrong}", gold.format(**values), draw.choice(
        WRAPPERS).format(wrong.format(**values))


def alone(gold: str, answer: str) -> bool:
  """math-verify without isojax."""
  import math_verify
  gold, answer = (math_verify.parse(f"${text}$", parsing_timeout=None)
                  for text in (gold, answer))
  return math_verify.verify(gold, answer, timeout_seconds=None)


def paid(grade, count: int, seed: int = 0) -> collections.Counter:
  """How often each pattern of a wrong answer is paid."""
  return collections.Counter(name for name, gold, answer in pairs(count, seed)
                             if grade(gold, answer))


def ours(gold: str, answer: str) -> bool:
  return math.same(gold, answer, question="")


if __name__ == "__main__":
  for name, grade in (("isojax", ours), ("math-verify alone", alone)):
    found = paid(grade, int(sys.argv[1]))
    print(f"{name}: pays {found.total()} of {sys.argv[1]}",
          *map(str, found.most_common(8)), sep="\n  ", flush=True)
