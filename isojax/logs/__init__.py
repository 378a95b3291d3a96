"""Reads logs of isojax and of other trainers. Letters:

  Bp  problems of a step       n  rollouts per problem   m  of n, trained on
  C   rollouts so far          D  training problems      M  updates
  k   samples per validation problem

A log goes through these files in turn. `log_file` opens it: `formats.text`
splits it into lines of names and values, with the steps of progress bars (TRL's
console), a `Format` is detected, and values of metrics become numbers, in
`log_file` and nowhere else. `runs` has the n and Bp of each of its runs, the
options, and C after each step (TRL's: formats/trl.py:generated). `metrics`
finds the names of its evaluations, or without any of its training reward. Then
`reading.read` makes rows of these, `reading.budgets`, of launch.fit and
isojax.read, keeps the last one of a run whose rate falls, as TRL's does, and
frontier/study.py:from_rows and fit_json.py:study_document make a fit; or
`series.read` has all steps of one run, which report/doctor.py:history and
diagnosis/findings.py:diagnose make findings. `fields` has the types, and
`granularity` finds n and Bp in the mean rewards, or checks them.
"""
