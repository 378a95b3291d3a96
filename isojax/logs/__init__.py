"""Reads logs of isojax and of other trainers. Letters:

  Bp  problems of a step       n  rollouts per problem   m  of n, trained on
  C   rollouts so far          D  training problems      M  updates
  k   samples per validation problem

A log goes through these files in turn:

  1. formats/text.py:load      lines of names and values; the steps of progress
                               bars (TRL's console)
  2. log_file.py:open_log      the trainer's Format; values become numbers
  3. runs.py:Runs              n, Bp and options of each run; C after a step
                               (TRL's: formats/trl.py:generations)
  4. metrics.py:curves_of      names of the evaluations, else of the training
                               reward
  5. for a fit, reading.py:read
                               a row for each evaluation; then launch/fit.py or
                               api/studies.py calls reading.budgets, which of a
                               run whose learning rate falls keeps the last one,
                               frontier/study.py:from_rows, and
                               fit_json.py:study_document
     for the doctor, series.py:read
                               all steps of one run; then report/
                               doctor.py:history and diagnosis/findings.py:
                               diagnose

fields.py has the types, and granularity.py finds n and Bp in the mean rewards,
or checks them.
"""
