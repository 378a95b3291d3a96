"""Progress on the terminal, by hand."""

from isojax import progress


def test_the_rate_leaves_out_the_step_that_compiles(monkeypatch, capsys):
  """10 s for the first 100 rollouts, then 2 s for each 100."""
  now = iter([0.0, 10.0, 12.0, 14.0])
  monkeypatch.setattr("time.monotonic", lambda: next(now))
  report = progress.reporter(step=4, steps=9, rollouts=400, C=900,
                             every_seconds=1.0)
  for step in (5, 6, 7):
    report(step, 100 * step, 0.5)
  assert capsys.readouterr().err.splitlines() == [
      "step 5/9  reward 0.500",
      "step 6/9  50 rollouts/s  reward 0.500  ETA 0:06",
      "step 7/9  50 rollouts/s  reward 0.500  ETA 0:04"]


def test_a_long_task_is_silent_at_first_then_has_rate_and_eta(
    monkeypatch, capsys):
  now = iter([0.0, 9.0, 20.0, 25.0])
  monkeypatch.setattr("time.monotonic", lambda: next(now))
  with progress.track(10_000, "sampling", "rollouts") as advance:
    for count in (1000, 3000, 1000):
      advance(count)
  assert capsys.readouterr().err == (
      "sampling: 4,000/10,000 rollouts  273/s  ETA 0:22\n")
  now = iter([0.0, 75.0])
  with progress.track(8, "avg@4", "samples") as advance:
    advance(0)  # a chunk in which none ended
  assert capsys.readouterr().err == "avg@4: 0/8 samples  after 1:15\n"
  with progress.track(3, "sampling", "rollouts", on=False) as advance:
    advance(3)


def test_clock():
  assert [progress.clock(s) for s in (0, 61.9, 3599, 3661, 90_000)] == [
      "0:00", "1:01", "59:59", "1:01:01", "25:00:00"]
