"""The table at the end of a run, by hand."""

from isojax import final_table


def test_rates_by_hand():
  """Bp * n = 6; the first step compiles and stands apart."""
  train = [{"rollouts": 6, "seconds_sample": 9.0, "seconds_score": 0.5,
            "seconds_update": 0.5}] + [
      {"rollouts": rollouts, "seconds_sample": 3.0, "seconds_score": 1.0,
       "seconds_update": 2.0} for rollouts in (12, 18)]
  assert final_table.rates(train) == [
      "             seconds   share  rollouts/s",
      "sample           6.0     50%           2",
      "score            2.0     17%           6",
      "update           4.0     33%           3",
      "step            12.0    100%           1",
      "and the first step, with compilation, 10.0 s"]
  for record in train[1:]:  # a recipe with several updates scores log-probs
    record["seconds_logp"] = 6.0
  assert final_table.rates(train)[3:6] == [
      "logp            12.0     50%           1",
      "update           4.0     17%           3",
      "step            24.0    100%           0"]


def test_table_names_start_and_end():
  evaluation = lambda step, avg: {
      "kind": "eval", "step": step, "k": 2, "correct": [0] * 5,
      "eval_set": "hard/validation"} | {
          f"{name}{end}": avg for name in ("avg", "best", "worst", "maj")
          for end in ("", "_se")}
  text = final_table.table([evaluation(0, 0.25), evaluation(7, 0.5)], "r.jsonl")
  assert "hard/validation: 5 problems, k = 2" in text
  assert "start       best, step 7      final, step 7" in text
  assert ("avg@2         0.2500 ± 0.2500    0.5000 ± 0.5000    0.5000 ± 0.5000"
          in text)
  assert text.endswith("records: r.jsonl")
  text = final_table.table([evaluation(0, 0.25), evaluation(3, 0.75),
                         evaluation(7, 0.5)], "r.jsonl")
  assert "start       best, step 3      final, step 7" in text
  assert "0.2500 ± 0.2500    0.7500 ± 0.7500    0.5000 ± 0.5000" in text
