"""Answers in texts by a table; linear time for any text."""

import hypothesis
from hypothesis import strategies as st
import pytest

from isojax.tasks import answer_extraction

extract = answer_extraction.extract

EXTRACTS = [
    # kind, text, answer
    ("whole", " 3+4\n", " 3+4\n"), ("whole", "", None), ("whole", " \n", None),
    ("boxed", r"so \boxed{7}.", "7"),
    ("boxed", r"\boxed{3} no, \boxed{4}", "4"),  # the last one
    ("boxed", r"\boxed{3}, \fbox{4}", "4"),
    ("boxed", r"\fbox{3}, \boxed {4}", "4"),
    ("boxed", r"so $x = \boxed 5$.", "5"),  # a few of MATH's solutions
    ("boxed", r"$\fbox \frac{1}{2}$", r"\frac{1}{2}"),
    ("boxed", "\\boxed $", None),
    ("boxed", r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
    ("boxed", r"\boxed{\boxed{5}}", "5"),
    ("boxed", r"\boxed{\{1,2\}}", r"\{1,2\}"),
    ("boxed", r"\boxed{a \} b}", r"a \} b"),  # an escaped brace closes nothing
    ("boxed", r"\boxed{3} and \boxed{4", None),  # unbalanced: the last is none
    ("boxed", r"\boxed{\frac{1}{2}", None),
    ("boxed", r"\boxed 5", "5"), ("boxed", r"\boxed{}", None),
    ("boxed", r"\boxed{ }", None), ("boxed", "7", None), ("boxed", "", None),
    ("boxed", r"\boxedx{5}", None), ("boxed", "\\boxed{1\n2}", "1\n2"),
    ("boxed", "\\boxed{\x00}", "\x00"),
    ("hash", "2+2\n#### 4\n", "4"), ("hash", "#### 4", "4"),
    ("hash", "#### 3\n#### 4 apples\nbye", "4 apples"),
    ("hash", "####", None), ("hash", "####\n4", None), ("hash", "# 4", None),
    ("hash", "##### 4", "4"), ("hash", "#### 4 ####", None),
    ("tags", "<answer>3</answer> <answer> 4 </answer>", " 4 "),
    ("tags", "<answer>3</answer> <answer>4", "3"),  # the last whole pair
    ("tags", "<answer>4", None), ("tags", "4</answer>", None),
    ("tags", "</answer>4<answer>", None), ("tags", "<answer></answer>", None),
    ("tags", "<answer>1<answer>2</answer>", "2"),
]


@pytest.mark.parametrize("kind, text, want", EXTRACTS)
def test_extract(kind, text, want):
  assert extract(text, kind) == want


@pytest.mark.parametrize("kind", answer_extraction.KINDS)
@pytest.mark.parametrize("text", [
    r"\boxed{" * 200_000, "{" * 500_000, r"\boxed{" + "{" * 500_000,
    "#" * 500_000, "<answer>" * 100_000, "</answer>" * 100_000,
    r"\boxed" * 100_000, r"\boxed{" + "\\" * 500_001, "\ud800" * 500_000])
def test_extract_is_linear(kind, text):
  extract(text, kind)  # quadratic ones would take minutes


@hypothesis.given(st.text(alphabet="\\{}boxedfa<>/nswr# 1\n"),
                  st.sampled_from(sorted(answer_extraction.KINDS)))
def test_extract_gives_a_part_or_nothing(text, kind):
  answer = extract(text, kind)
  assert answer is None or (answer in text and answer.strip())


BALANCED = st.recursive(
    st.sampled_from(["a", " b", r"\}", r"\frac"]),
    lambda inner: st.lists(inner, min_size=1).map(
        lambda parts: "{" + "".join(parts) + "}"))


@hypothesis.given(BALANCED)
def test_boxed_gives_what_was_boxed(inner):
  assert extract(f"x \\boxed{{{inner}}} y", "boxed") == inner
