"""isojax.core.format: the strings that people read, against literals."""

import pytest

from isojax.core import format as format_lib


@pytest.mark.parametrize("function, texts", [
    (format_lib.number, {
        None: "–", 0: "0", 0.012345: "0.0123", 3.14159: "3.14", -2.5: "-2.5",
        99.94: "99.9", 99.96: "100", 100: "100", 1234.5: "1,234",
        -1234567: "-1,234,567", 2e9: "2e+09"}),
    (lambda x: format_lib.rounded(x, 2), {
        None: "–", 97.7: "98", 1060.4: "1,100", 0.1234: "0.12", 9.96: "10",
        1.96: "2", 1.23: "1.2"}),
    (lambda x: format_lib.rounded(x, 3), {
        123.4: "123", 12.34: "12.3", 98765: "98,800"}),
    (lambda x: format_lib.compact(x, 0), {
        None: "–", 64: "64", 0.5: "0.5", 999: "999", 1000: "1k",
        20_480: "20.5k", 99_999: "100k", 100_000: "0.1M", 500_000: "0.5M",
        6.08e6: "6.08M", 1e8: "0.1B", 8.8e9: "8.8B", 2e15: "2e+15"}),
    (format_lib.rate, {0.5: "0.500", None: "–"}),
    (format_lib.signed, {0.25: "+0.250", -0.25: "-0.250", None: "–"}),
    (lambda x: format_lib.pair(x, format_lib.number), {
        (1, 2000): "[1, 2,000]", None: "–"}),
    (lambda x: format_lib.many(x, "run"), {
        1: "1 run", 0: "0 runs", 1200: "1,200 runs"}),
    (format_lib.duration, {
        None: "–", 0.5: "0.5 s", 119: "119 s", 120: "2 min", 7199: "120 min",
        7200: "2 h", 172_799: "48 h", 172_800: "2 days",
        8.64e7: "1,000 days"}),
    (lambda x: format_lib.duration(x, format_lib.rounded), {97.7: "98 s"}),
    (format_lib.aligned, {(("n", "time"), ("16", "2 h")): (
        " n  time\n16   2 h")})])
def test_values_as_people_read_them(function, texts):
  assert {value: function(value) for value in texts} == texts


@pytest.mark.parametrize("total, near, least, text", [
    (176, 100, 1, "88 or 176"), (7, 8, 2, "7"), (20, 8, 2, "5 or 10"),
    (64, 8, 2, "8"), (7, 2, 2, "7"), (10**15 + 37, 9, 2, "")])
def test_the_divisors_on_both_sides(total, near, least, text):
  assert format_lib.nearest_divisors(total, near, least=least) == text
