"""The one-line defects that launch.verify.mutants puts into the code.

A mutation replaces text that occurs exactly once in a file. Its tests must fail
then; they are the ones meant to guard the line, not the whole suite.
"""

import typing


class Mutation(typing.NamedTuple):
  """One defect, and the tests that have to notice it."""

  name: str  # what is wrong with the mutated code
  file: str
  old: str  # occurs once in the file
  new: str
  tests: tuple[str, ...]  # arguments of pytest


GRADIENT = ("tests/rl/test_reference_gradient.py",)
LOSSES = ("tests/rl/test_loss_cases.py", "tests/rl/test_losses.py",
          "tests/rl/test_advantages.py", "tests/rl/test_aggregation.py",
          "tests/rl/test_objective.py")
UPDATE = ("tests/rl/test_update.py",)
SAMPLER = ("tests/sampling",)
LEDGER = ("tests/ledger/test_records.py", "tests/ledger/test_continuity.py")
CHECKPOINT = ("tests/ledger/test_checkpoint.py",)
FRONTIER = ("tests/frontier/test_envelope.py",)
DECODER = ("tests/models/test_models.py",)

_ADVANTAGES = "isojax/rl/advantages.py"
_AGGREGATION = "isojax/rl/aggregation.py"
_LOSSES = "isojax/rl/losses.py"
_OBJECTIVE = "isojax/rl/objective.py"
_PACKING = "isojax/rl/packing.py"
_HEAD = "isojax/rl/chunked_head.py"
_UPDATE = "isojax/rl/update.py"
_SAMPLER = "isojax/sampling/sampler.py"
_DECODE = "isojax/sampling/decode.py"
_QUEUE = "isojax/sampling/queue.py"
_DRAW = "isojax/sampling/draw.py"
_DECODER = "isojax/models/decoder.py"
_EVALUATE = "isojax/evaluate.py"
_RECORDS = "isojax/ledger/records.py"
_CHECKPOINT = "isojax/ledger/checkpoint.py"
_ENVELOPE = "isojax/frontier/envelope.py"
_LAWS = "isojax/planner/laws.py"

MUTATIONS = (
    # Advantages, weights and losses.
    Mutation("advantage has the wrong sign", _ADVANTAGES,
             "reward - reward.mean(axis=1, keepdims=True), 0.0)",
             "reward.mean(axis=1, keepdims=True) - reward, 0.0)", LOSSES),
    Mutation("advantage is centred over the batch", _ADVANTAGES,
             "reward - reward.mean(axis=1, keepdims=True), 0.0)",
             "reward - reward.mean(), 0.0)", LOSSES),
    Mutation("ddof is ignored", _ADVANTAGES, "ddof=ddof, keepdims",
             "ddof=0, keepdims", LOSSES),
    Mutation("leave-one-out factor is inverted", _ADVANTAGES,
             "(n / max(n - 1, 1))", "(max(n - 1, 1) / n)", LOSSES),
    Mutation("informative asks for all rewards to differ", _ADVANTAGES,
             "reward[:, :1]).any(axis=1)", "reward[:, :1]).all(axis=1)",
             LOSSES),
    Mutation("policy and regularizer drop groups the other way", _AGGREGATION,
             '"policy": (True, False),', '"policy": (False, True),', LOSSES),
    Mutation("token mean counts dropped groups", _AGGREGATION,
             "tokens = (len_Bpxn * keep_Bpxn).sum()",
             "tokens = len_Bpxn.sum()", LOSSES),
    Mutation("prompt mean divides by all groups", _AGGREGATION,
             "(tokens_Bpx1 > 0).sum(), 1)", "len(tokens_Bpx1), 1)", LOSSES),
    Mutation("log-probs ignore the temperature", _LOSSES,
             "log_softmax(logits_RxTxV / temperature, axis=-1)",
             "log_softmax(logits_RxTxV, axis=-1)", GRADIENT),
    Mutation("entropy has the wrong sign", _LOSSES,
             "entropy_RxT = -jnp.sum(", "entropy_RxT = jnp.sum(",
             LOSSES + GRADIENT),
    Mutation("clip bounds are swapped", _LOSSES,
             "jnp.clip(ratio, 1 - clip_low, 1 + clip_high)",
             "jnp.clip(ratio, 1 - clip_high, 1 + clip_low)", LOSSES),
    Mutation("clip takes the larger objective", _LOSSES,
             "bounded = bound < free", "bounded = bound > free", LOSSES),
    Mutation("importance weight is inverted", _LOSSES,
             "jnp.exp(gap_RxT))", "jnp.exp(-gap_RxT))", LOSSES + GRADIENT),
    Mutation("importance cap is a lower bound", _LOSSES,
             "return jnp.minimum(ratio, cap)", "return jnp.maximum(ratio, cap)",
             LOSSES + GRADIENT),
    Mutation("KL estimates the other direction", _LOSSES,
             "d = jnp.clip(ref_logp_RxT - logp_RxT,",
             "d = jnp.clip(logp_RxT - ref_logp_RxT,",
             LOSSES + GRADIENT),
    Mutation("k3 lacks its linear term", _LOSSES, "return jnp.expm1(d) - d",
             "return jnp.expm1(d)", LOSSES + GRADIENT),
    # The objective and the update.
    Mutation("KL is multiplied by 0", _OBJECTIVE,
             "value += cfg.kl_coef * kl *", "value += 0 * cfg.kl_coef * kl *",
             GRADIENT),
    Mutation("entropy bonus is a penalty", _OBJECTIVE,
             "value -= cfg.entropy_coef * entropy",
             "value += cfg.entropy_coef * entropy", GRADIENT),
    Mutation("KL has the weights of the policy term", _OBJECTIVE,
             "kl * token.regularizer_weight_RxW", "kl * token.policy_weight_RxW",
             GRADIENT),
    Mutation("importance weights are left out", _OBJECTIVE,
             "policy, bounded = policy * weight, bounded | capped",
             "policy, bounded = policy, bounded | capped", GRADIENT),
    Mutation("KL refers to the policy, not to the base", _UPDATE,
             "ref_hidden = chunked_head.hidden_states(model, base, batch, dtype)",
             "ref_hidden = jax.lax.stop_gradient(hidden)", GRADIENT),
    Mutation("the last token of a row is masked out", _UPDATE,
             "(jnp.arange(W)[None] < batch.len_R[:, None],",
             "(jnp.arange(W)[None] < batch.len_R[:, None] - 1,", GRADIENT),
    Mutation("only the last microbatch counts", _UPDATE,
             "return jax.tree.map(\n        jnp.add, carry, gradient(",
             "return jax.tree.map(\n        lambda _, x: x, carry, gradient(",
             GRADIENT + UPDATE),
    Mutation("warm-up starts at 0", _UPDATE, "(step + 1) / max(1, steps)",
             "step / max(1, steps)", UPDATE),
    Mutation("an update without gradient steps the optimizer", _UPDATE,
             "if not batches:\n      return skip(state)", "if False:\n      pass",
             UPDATE),
    Mutation("no gradient reaches the prompt's cache", _HEAD,
             "clone, prefill.prompt_cache(model, params, batch.prompts, dtype))",
             "lambda x: jax.lax.stop_gradient(clone(x)), prefill.prompt_cache("
             "model, params, batch.prompts, dtype))", GRADIENT),
    Mutation("positions of packed answers start one late", _HEAD,
             "last_R[:, None] + batch.offset_RxW,",
             "last_R[:, None] + 1 + batch.offset_RxW,", GRADIENT),
    Mutation("answers see the answers before them in a row", _HEAD,
             "Seen(S, last_R, S + start_RxW)", "Seen(S, last_R, S + 0 * start_RxW)",
             GRADIENT),
    Mutation("tokens have the advantage of another rollout", _PACKING,
             "put(np.asarray(advantage_B)[source], np.float32)",
             "put(np.asarray(advantage_B)[source - source % n], np.float32)",
             GRADIENT + UPDATE),
    Mutation("answers overwrite each other in a row", _PACKING,
             "np.cumsum(rollouts.len_R[row]) - rollouts.len_R[row] for row",
             "0 * rollouts.len_R[row] for row", GRADIENT + UPDATE),
    # Sampling.
    Mutation("rollouts of a problem share their random numbers",
             "isojax/rng.py",
             "return fold(jax.vmap(jax.random.fold_in, axes)(key, id_R), "
             "rollout_R)",
             "return fold(jax.vmap(jax.random.fold_in, axes)(key, id_R), "
             "0 * rollout_R)", SAMPLER),
    Mutation("each position draws with the same random number", "isojax/rng.py",
             "jax.vmap(jax.random.fold_in)(key_R, position_R)",
             "jax.vmap(jax.random.fold_in)(key_R, 0 * position_R)", SAMPLER),
    Mutation("sampled log-probs ignore the temperature", _DRAW,
             'scale = 1.0 if kind == "greedy" else temperature', "scale = 1.0",
             SAMPLER),
    Mutation("the nucleus keeps one token too few", _DRAW,
             "mass - ordered < top_p * mass", "mass < top_p * mass", SAMPLER),
    Mutation("greedy sampling takes the least likely token", _DRAW,
             "jnp.argmax(logits_RxV", "jnp.argmin(logits_RxV", SAMPLER),
    Mutation("the end-of-sequence token is not counted", _DECODE,
             "count_R = row.count_R + row.active_R",
             "count_R = row.count_R + (row.active_R & ~ended_R)", SAMPLER),
    Mutation("slots go on after the end of sequence", _DECODE,
             "continues_R = row.active_R & ~ended_R & (count_R < T)",
             "continues_R = row.active_R & (count_R < T)", SAMPLER),
    Mutation("a token does not see itself while decoding", _DECODE,
             "slot_L <= row.position_R[:, None, None]",
             "slot_L < row.position_R[:, None, None]", SAMPLER),
    Mutation("entropy of idle slots is counted", _DECODE,
             "jnp.where(row.active_R, entropy_R, 0.0)", "entropy_R", SAMPLER),
    Mutation("a slot starts at the wrong prompt token", _QUEUE,
             "last = q.prompts.len_P[problem] - 1",
             "last = np.maximum(q.prompts.len_P[problem] - 2, 0)", SAMPLER),
    Mutation("slots forget which rollout they decode", _QUEUE,
             "q.row.rollout_R[rows] = rollout", "q.row.rollout_R[rows] = 0",
             SAMPLER),
    Mutation("a chunk overwrites the tokens of the chunk before", _QUEUE,
             "target = items[at], before[at] + col",
             "target = items[at], col", SAMPLER),
    # The decoder.
    Mutation("rotary embedding turns the wrong way", _DECODER,
             "[a * cos - b * sin, b * cos + a * sin]",
             "[a * cos + b * sin, b * cos - a * sin]", DECODER),
    Mutation("attention scores are not scaled", "isojax/models/attention.py",
             "return einsum(q_BxTxNxH * scale,", "return einsum(q_BxTxNxH,",
             DECODER),
    Mutation("a window sees one token too many", "isojax/models/attention.py",
             "(seen[..., -1:] - seen < window)",
             "(seen[..., -1:] - seen <= window)", DECODER),
    Mutation("the norm offset is dropped", _DECODER,
             "weight_D.astype(jnp.float32) + cfg.norm_offset",
             "weight_D.astype(jnp.float32)", DECODER),
    Mutation("adapters are scaled by rank / alpha", "isojax/models/lora.py",
             "return self.alpha / self.rank", "return self.rank / self.alpha",
             ("tests/models/test_lora.py",)),
    # Evaluation, planner, frontier.
    Mutation("best@k counts the wrong samples", _EVALUATE,
             "worst_at_k(stored - np.asarray(correct_Q)",
             "worst_at_k(np.asarray(correct_Q)", ("tests/test_evaluate.py",)),
    Mutation("standard errors have ddof 0", _EVALUATE, "value.std(ddof=1)",
             "value.std(ddof=0)", ("tests/test_evaluate.py",)),
    Mutation("tied votes count as wrong", _EVALUATE,
             "return sum(vote in right for vote in tied) / len(tied)",
             "return float(all(vote in right for vote in tied))",
             ("tests/test_evaluate.py",)),
    Mutation("evaluations drift from C to later steps", _EVALUATE,
             "steps.add(-(-due // B))", "steps.add(due // B + 1)",
             ("tests/test_evaluate.py",)),
    Mutation("n* falls with C", _LAWS, "logistic(k * (x - x0))",
             "logistic(k * (x0 - x))", ("tests/planner",)),
    Mutation("the law's midpoint is in other units", _LAWS,
             "return 10.0 ** self.log10_C0", "return 2.0 ** self.log10_C0",
             ("tests/planner",)),
    Mutation("learning rate grows with B, not with its root",
             "isojax/planner/allocation.py", "(B / base_batch) ** 0.5",
             "(B / base_batch)", ("tests/planner/test_allocation.py",)),
    Mutation("the frontier follows the worst configuration", _ENVELOPE,
             "best = seen.argmax(1)", "best = seen.argmin(1)", FRONTIER),
    Mutation("a configuration leads before its first evaluation", _ENVELOPE,
             "seen = np.where(begun, clipped, -np.inf)", "seen = clipped",
             FRONTIER),
    Mutation("a configuration that has not begun cannot be a rival", _ENVELOPE,
             "np.where(ended | ~begun, continued, clipped)",
             "np.where(ended, continued, np.where(begun, clipped, -np.inf))",
             FRONTIER),
    Mutation("runs that ended are continued as measured", _ENVELOPE,
             "clipped = np.stack([c(np.minimum(C_G, c.C_hi)) for c in curves_K],"
             " 1)", "clipped = continued", FRONTIER),
    # Records and checkpoints.
    Mutation("a resume drops the records of its own step", _RECORDS,
             'if r["step"] <= step]', 'if r["step"] < step]', LEDGER),
    Mutation("a checksum does not cover the records before it", _RECORDS,
             "text = before + json.dumps(", "text = json.dumps(", LEDGER),
    Mutation("records of another run are accepted",
             "isojax/ledger/continuity.py",
             'if record["run_id"] != run_id:', "if False:", LEDGER),
    Mutation("changed bytes of a checkpoint are not noticed", _CHECKPOINT,
             "or found[key] != saved[key]]", "]", CHECKPOINT),
    Mutation("a checksum ignores where a value is", _CHECKPOINT,
             "odd = odd * jnp.uint32(2654435761) + 2 * index",
             "odd = odd * jnp.uint32(2654435761) + 0 * index", CHECKPOINT),
    Mutation("the checkpoint of another run is restored",
             "isojax/ledger/step_folders.py",
             'if found["run_id"] != run_id:', "if False:", CHECKPOINT),
)
