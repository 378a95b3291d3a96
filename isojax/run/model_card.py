"""The README.md of an exported policy: where it comes from, and its prompts."""

from isojax.models import tokenizer as tokenizer_lib
from isojax.tasks import prompts

CARD = """# {name}

A policy trained with isojax: run {run_id}, step {step}, {policy} policy.
Its base is `{base}`.

## Prompt

It was trained on prompts of this form, in Python:

```python
{prompt}
```

{note} Answers had at most {limit} tokens, sampled at temperature {temperature}.
"""
NOTES = {
    True: "This is the chat template of the tokenizer, as chat servers use it.",
    False: "This is plain text. Chat servers would put it into a chat "
           "template, another form: ask them for a completion."}


def text(values: dict, folder: str, *, run_id: str, step: int,
         policy: str) -> str:
  """The card of a policy.

  Args:
    values: the config of its run.
    folder: checkpoint of its base policy, with the tokenizer.
    policy: "average" or "current".
  """
  cfg = prompts.PromptConfig(**values["task"]["prompt"])
  return CARD.format(
      name=values["name"], run_id=run_id, step=step, policy=policy,
      base=values["model"]["path"], note=NOTES[cfg.chat],
      prompt=prompts.as_code(tokenizer_lib.load(folder), cfg),
      limit=values["sampler"]["max_new_tokens"],
      temperature=values["sampler"]["temperature"])
