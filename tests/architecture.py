"""The architecture as data: the layers, and what each module imports.

  python -m tests.architecture           # prints IMPORTS as the code has it
  python -m tests.architecture --write   # renews IMPORTS and docs/design.md
"""

import ast
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[1]
DESIGN = ROOT / "docs/design.md"
MARKS = ("<!-- layers -->\n", "<!-- /layers -->")

# From the bottom to the top. A module imports from its own layer or from lower
# ones. A name stands for a module, or for a package with all its modules; the
# longest one that fits decides.
LAYERS = {
    "foundations": (
        "isojax", "errors", "format",
        "allocation", "plan_file", "models.shape", "sampling.sizes",
    "rl.sizes", "attention_kernels", "types", "rng", "mesh",
        "evaluate", "laws", "progress", "summaries", "diagnosis",
        "config_file", "cli", "compilation", "profile", "preemption",
        "own_file"),
    "ledger": ("ledger",),
    "decisions": ("planner", "frontier"),
    "policy": ("models", "sampling", "rl", "tasks"),
    "run": ("hosts", "ledger.checkpoint",
            "experiment", "final_table", "policy", "run_context", "stopping",
            "rollouts", "step_rollouts", "opening", "sampled_texts", "rollouts_in_flight",
            "resume", "run_folder", "run_state", "step", "training",
            ),
    "sweep": ("sweep", "sweeper"),
    "commands": ("main", "launch"),
    "interface": ("api",),
}
# What people use who only plan, fit or manage sweeps: it does not load jax.
# The sweeper imports `experiment` inside a function, to name new runs.
WITHOUT_JAX = (
    "errors", "format",
    "config_file", "cli",
    "allocation", "plan_file", "models.shape", "sampling.sizes",
    "rl.sizes", "attention_kernels", "evaluate", "laws", "progress", "ledger",
    "planner", "frontier", "sweep", "sweeper")
WITH_JAX = ("ledger.checkpoint",)
# The only modules that import these libraries.
ONLY = {
    "flax.linen": ("models",),
    "ml_collections": ("api", "cli", "config_file", "launch"),
    "matplotlib": ("frontier.report", "tasks.histogram", "launch"),
    "torch": ("launch.bench.peers", "launch.verify.checkpoint_parity",
              "launch.verify.parity"),
    "tensorflow": (),
}


def files() -> list[pathlib.Path]:
  """Every module of the package and of launch, without empty __init__.py."""
  found = [*(ROOT / "isojax").rglob("*.py"), *(ROOT / "launch").rglob("*.py")]
  return sorted(f for f in found if f.read_text("utf-8"))


def name_of(path: pathlib.Path) -> str:
  """Dotted name without "isojax."; a package has that of its folder."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  parts = parts[:-1] if parts[-1] == "__init__" else parts
  return ".".join(parts[parts[0] == "isojax" and len(parts) > 1:])


def imported(path: pathlib.Path):
  """Dotted names that a file imports, module and name of `from` joined."""
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_imports(path: pathlib.Path, names: set[str]) -> set[str]:
  """The modules of this project that a file imports."""
  found = set()
  for full in imported(path):
    if full.split(".")[0] not in ("isojax", "launch"):
      continue
    name = full.removeprefix("isojax.")
    while name and name not in names:  # a function or class of a module
      name = name.rpartition(".")[0]
    if not name:
      raise ValueError(f"{path} imports {full}, which is in no module")
    found.add(name)
  return found


def within(name: str, parts: tuple[str, ...]) -> bool:
  """Whether a module is one of these modules, or in one of these packages."""
  return any(f"{name}.".startswith(f"{part}.") for part in parts)


def layer_of(name: str) -> str:
  """The layer of a module: that of the longest name that fits."""
  fitting = [(len(part), layer) for layer, parts in LAYERS.items()
             for part in parts if within(name, (part,))]
  if not fitting:
    raise ValueError(f"{name} is in no layer; add it to LAYERS")
  return max(fitting)[1]


def found_imports() -> dict[str, set[str]]:
  """Module to the modules of this project that it imports."""
  by_name = {name_of(f): f for f in files()}
  return {name: our_imports(f, set(by_name)) for name, f in by_name.items()}


def purpose(path: pathlib.Path) -> str:
  """The first sentence of a module's docstring; empty if there is none."""
  text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
  return text.split("\n\n")[0].replace("\n", " ")


def diagram() -> str:
  """The layers from the top down, each with its modules and their purpose."""
  by_name = {name_of(f): f for f in files()}
  lines = ["A module imports from its own layer or from layers below it.", ""]
  for layer in reversed(LAYERS):
    lines += [f"**{layer}**", "", "| module | purpose |", "|---|---|"]
    lines += [f"| `{name}` | {purpose(f)} |" for name, f in by_name.items()
              if layer_of(name) == layer]
    lines.append("")
  return "\n".join(lines)


def rows() -> str:
  """The literal of IMPORTS as the code has it."""
  lines = ["IMPORTS = {"]
  for name, needs in found_imports().items():
    parts = textwrap.wrap(" ".join(sorted(needs)), 66) or [""]
    lines.append(f'    "{name}":')
    lines += [f'        "{part} "' for part in parts[:-1]]
    lines.append(f'        "{parts[-1]}",')
  return "\n".join([*lines, "}", ""])


def replace(path: pathlib.Path, marks: tuple[str, str], text: str) -> None:
  """Replaces what is between two marks of a file."""
  before, _, rest = path.read_text("utf-8").partition(marks[0])
  _, _, after = rest.partition(marks[1])
  path.write_text(f"{before}{marks[0]}{text}{marks[1]}{after}", "utf-8")


# Module -> the modules of this project that it imports; --write renews it.
# <imports>
IMPORTS = {
    "isojax":
        "",
    "allocation":
        "errors",
    "api.configs":
        "config_file errors ledger.workdir",
    "api.figures":
        "",
    "api.plans":
        "api.configs api.studies errors planner.planning planner.request",
    "api.problem_sets":
        "api.configs errors launch.demo_model.make launch.split.run "
        "progress",
    "api.runs":
        "api.configs api.figures cli compilation errors frontier.plots "
        "ledger.bucket ledger.records models.hf_weights progress rl.rewards "
        "rng rollouts run_context run_folder sampling.sampler stopping "
        "tasks.prompts training types",
    "api.speedups":
        "api.configs api.figures api.studies errors frontier.comparison "
        "frontier.plots frontier.read frontier.result own_file",
    "api.studies":
        "api.configs api.figures errors format frontier.bootstrap "
        "frontier.curves frontier.read frontier.result frontier.study "
        "own_file planner.cautions planner.fit_file",
    "api.sweeps":
        "allocation api.configs cli config_file errors experiment format "
        "ledger.records ledger.workdir plan_file planner.planning progress "
        "sweeper",
    "cli":
        "config_file errors preemption",
    "compilation":
        "",
    "config_file":
        "allocation errors own_file",
    "diagnosis":
        "",
    "errors":
        "",
    "evaluate":
        "",
    "experiment":
        "allocation config_file errors mesh models.lora rl.advantages "
        "rl.algorithm rl.critic rl.objective rl.optimizer rl.rewards "
        "sampling.sampler tasks.grader tasks.prompts",
    "final_table":
        "ledger.records",
    "format":
        "",
    "frontier.analysis":
        "frontier.bootstrap frontier.collapse frontier.envelope "
        "frontier.study frontier.verdict laws",
    "frontier.bootstrap":
        "errors frontier.collapse frontier.curves frontier.study",
    "frontier.collapse":
        "format frontier.study",
    "frontier.comparison":
        "errors format frontier.collapse frontier.plots frontier.read "
        "frontier.speedup frontier.study ledger.records",
    "frontier.curves":
        "errors frontier.varpro",
    "frontier.diagnostics":
        "errors format frontier.analysis frontier.bootstrap "
        "frontier.envelope frontier.study frontier.verdict laws",
    "frontier.envelope":
        "frontier.curves frontier.varpro laws",
    "frontier.fit_json":
        "errors format frontier.bootstrap frontier.diagnostics "
        "frontier.envelope frontier.interference frontier.scalerl "
        "frontier.study frontier.verdict laws",
    "frontier.formats":
        "frontier.formats.isojax frontier.formats.nemo_rl "
        "frontier.formats.prime_rl frontier.formats.table "
        "frontier.formats.tinker frontier.formats.trl "
        "frontier.formats.tunix frontier.formats.verl",
    "frontier.formats.base":
        "ledger.records",
    "frontier.formats.isojax":
        "frontier.formats.base ledger.records",
    "frontier.formats.nemo_rl":
        "frontier.formats.base",
    "frontier.formats.prime_rl":
        "frontier.formats.base",
    "frontier.formats.table":
        "frontier.formats.base",
    "frontier.formats.text":
        "errors frontier.formats.base",
    "frontier.formats.tinker":
        "frontier.formats.base",
    "frontier.formats.trl":
        "errors frontier.formats.base",
    "frontier.formats.tunix":
        "frontier.formats.base",
    "frontier.formats.verl":
        "frontier.formats.base",
    "frontier.interference":
        "frontier.bootstrap frontier.study",
    "frontier.labels":
        "format",
    "frontier.next_sweep":
        "allocation frontier.study frontier.verdict laws",
    "frontier.plots":
        "format frontier.labels",
    "frontier.read":
        "errors frontier.formats frontier.formats.base "
        "frontier.formats.text ledger.bucket ledger.records",
    "frontier.report":
        "format frontier.labels frontier.study",
    "frontier.result":
        "errors format frontier.analysis frontier.bootstrap "
        "frontier.fit_json frontier.formats.base frontier.labels "
        "frontier.next_sweep frontier.plots frontier.read frontier.report "
        "frontier.study ledger.records",
    "frontier.scalerl":
        "errors",
    "frontier.speedup":
        "errors frontier.study",
    "frontier.study":
        "errors evaluate frontier.formats.base frontier.read",
    "frontier.synthetic":
        "frontier.curves frontier.study",
    "frontier.varpro":
        "",
    "frontier.verdict":
        "format frontier.bootstrap frontier.collapse frontier.curves "
        "frontier.envelope frontier.study laws",
    "hosts":
        "cli errors ledger.workdir progress",
    "laws":
        "",
    "ledger.bucket":
        "errors",
    "ledger.checkpoint":
        "errors hosts ledger.bucket types",
    "ledger.records":
        "errors ledger.bucket",
    "ledger.workdir":
        "errors ledger.bucket ledger.records",
    "main":
        "cli compilation config_file errors final_table hosts ledger.bucket "
        "ledger.records plan_file preemption profile progress rollouts "
        "run_context run_folder stopping training",
    "mesh":
        "errors",
    "models.attention":
        "errors mesh models.kernels",
    "models.decoder":
        "mesh models.attention models.linear models.paged_attention "
        "models.precision",
    "models.hf_config":
        "errors models.decoder models.shape own_file",
    "models.hf_weights":
        "errors progress",
    "models.int8":
        "",
    "models.kernels":
        "",
    "models.linear":
        "mesh models.int8",
    "models.lora":
        "errors models.decoder models.hf_weights models.int8",
    "models.paged_attention":
        "models.attention",
    "models.precision":
        "",
    "models.shape":
        "errors",
    "models.tokenizer":
        "errors",
    "opening":
        "format models.decoder models.lora run_context",
    "own_file":
        "errors",
    "plan_file":
        "allocation errors laws",
    "planner.advice":
        "allocation errors laws planner.cautions planner.fit_file "
        "planner.priors",
    "planner.cautions":
        "allocation laws planner.fit_file planner.priors",
    "planner.cost.calibration":
        "models.shape planner.cost.efficiency planner.cost.machine "
        "planner.cost.pricing planner.cost.workload",
    "planner.cost.choices":
        "planner.cost.pricing planner.cost.recipe planner.cost.roofline",
    "planner.cost.efficiency":
        "errors",
    "planner.cost.lengths":
        "planner.cost.slots planner.cost.workload sampling.sizes",
    "planner.cost.machine":
        "errors",
    "planner.cost.measured":
        "errors models.shape planner.cost.efficiency planner.cost.machine "
        "planner.cost.recipe planner.cost.roofline planner.cost.workload",
    "planner.cost.memory":
        "models.kernels models.shape planner.cost.machine "
        "planner.cost.roofline rl.sizes sampling.sizes",
    "planner.cost.pricing":
        "errors models.shape planner.cost.efficiency planner.cost.machine "
        "planner.cost.roofline planner.cost.slots planner.cost.step_memory "
        "planner.cost.workload sampling.sizes",
    "planner.cost.recipe":
        "errors",
    "planner.cost.roofline":
        "errors models.shape planner.cost.efficiency planner.cost.lengths "
        "planner.cost.machine planner.cost.recipe planner.cost.slots "
        "planner.cost.workload",
    "planner.cost.slots":
        "sampling.sizes",
    "planner.cost.step_memory":
        "models.shape planner.cost.machine planner.cost.memory "
        "planner.cost.roofline planner.cost.slots planner.cost.workload "
        "rl.sizes sampling.sizes",
    "planner.cost.workload":
        "errors models.kernels models.shape planner.cost.recipe",
    "planner.fit_file":
        "errors laws",
    "planner.planning":
        "allocation errors format ledger.records plan_file planner.advice "
        "planner.cost.pricing planner.cost.roofline planner.pods "
        "planner.prices planner.priors planner.request planner.schedule "
        "planner.stages planner.tables",
    "planner.pods":
        "errors",
    "planner.prices":
        "errors evaluate ledger.bucket ledger.records models.shape "
        "plan_file planner.cost.efficiency planner.cost.measured "
        "planner.cost.memory planner.cost.pricing planner.cost.recipe "
        "planner.cost.roofline planner.cost.slots planner.cost.workload "
        "planner.request sampling.sizes",
    "planner.priors":
        "errors laws",
    "planner.request":
        "allocation config_file errors models.shape own_file "
        "planner.cost.machine planner.cost.roofline planner.fit_file "
        "planner.priors",
    "planner.schedule":
        "allocation errors planner.advice planner.cautions planner.fit_file",
    "planner.stages":
        "",
    "planner.tables":
        "allocation errors format plan_file planner.advice "
        "planner.cost.calibration planner.cost.choices planner.cost.lengths "
        "planner.cost.pricing planner.cost.roofline planner.cost.workload "
        "planner.pods planner.schedule",
    "planner.trainers":
        "allocation errors",
    "policy":
        "errors mesh models.decoder models.hf_config models.hf_weights "
        "models.shape models.tokenizer sampling.interrupt sampling.sampler "
        "sampling.sizes",
    "preemption":
        "",
    "profile":
        "errors",
    "progress":
        "",
    "resume":
        "errors hosts ledger.checkpoint ledger.records run_context",
    "rl.advantages":
        "",
    "rl.aggregation":
        "",
    "rl.algorithm":
        "errors rl.advantages rl.aggregation rl.critic rl.objective types",
    "rl.critic":
        "errors mesh models.decoder models.lora rl.head rl.losses "
        "rl.objective types",
    "rl.head":
        "mesh models.attention models.decoder rl.sizes sampling.prefill "
        "types",
    "rl.losses":
        "",
    "rl.objective":
        "errors models.attention models.decoder models.precision own_file "
        "rl.advantages rl.aggregation rl.losses rl.selection types",
    "rl.optimizer":
        "errors mesh models.decoder models.lora rl.critic types",
    "rl.packing":
        "types",
    "rl.rewards":
        "errors types",
    "rl.selection":
        "",
    "rl.sizes":
        "",
    "rl.update":
        "mesh models.attention models.decoder models.lora models.precision "
        "rl.algorithm rl.critic rl.head rl.losses rl.objective rl.optimizer "
        "rl.packing types",
    "rng":
        "",
    "rollouts":
        "hosts profile progress rl.rewards run_context sampling.sampler "
        "stopping tasks.grader tasks.stratum_file types",
    "rollouts_in_flight":
        "errors hosts rng rollouts run_context sampling.in_flight "
        "sampling.in_flight_queue step_rollouts stopping tasks.grader "
        "tasks.prompts",
    "run_context":
        "allocation errors experiment ledger.records ledger.workdir mesh "
        "models.decoder models.hf_weights models.lora own_file policy "
        "rl.optimizer rl.packing rl.update rng sampling.sampler tasks.base "
        "tasks.grader tasks.prompts tasks.stratum_file types",
    "run_folder":
        "hosts ledger.checkpoint ledger.workdir run_context",
    "run_state":
        "compilation diagnosis rollouts rollouts_in_flight run_context "
        "stopping types",
    "sampled_texts":
        "errors hosts ledger.bucket ledger.records rl.rewards types",
    "sampling.cache":
        "mesh models.decoder",
    "sampling.compile_ahead":
        "compilation models.decoder sampling.sampler",
    "sampling.decode":
        "mesh models.decoder rng sampling.cache sampling.draw "
        "sampling.interrupt sampling.paged_cache types",
    "sampling.draw":
        "",
    "sampling.in_flight":
        "mesh models.decoder sampling.draw sampling.in_flight_queue "
        "sampling.interrupt sampling.prefill sampling.queue "
        "sampling.sampler types",
    "sampling.in_flight_queue":
        "sampling.interrupt sampling.queue types",
    "sampling.interrupt":
        "errors types",
    "sampling.paged":
        "models.decoder sampling.paged_cache sampling.pages "
        "sampling.prefill sampling.queue sampling.sizes types",
    "sampling.paged_cache":
        "models.decoder models.paged_attention",
    "sampling.pages":
        "sampling.sizes",
    "sampling.prefill":
        "models.attention models.decoder types",
    "sampling.queue":
        "sampling.interrupt types",
    "sampling.sampler":
        "errors mesh models.attention models.decoder models.int8 "
        "models.kernels models.precision sampling.cache sampling.decode "
        "sampling.draw sampling.interrupt sampling.paged "
        "sampling.paged_cache sampling.pages sampling.prefill "
        "sampling.queue sampling.sizes types",
    "sampling.sizes":
        "errors models.shape",
    "step":
        "hosts mesh profile rl.algorithm rl.critic rl.packing rl.rewards "
        "rl.update rng rollouts rollouts_in_flight run_state step_rollouts "
        "types",
    "step_rollouts":
        "experiment profile rl.advantages rng rollouts run_context "
        "sampling.interrupt stopping tasks.grader tasks.prompts "
        "tasks.stratum_file types",
    "stopping":
        "hosts",
    "summaries":
        "errors",
    "sweep.attempts":
        "cli ledger.records sweep.runs",
    "sweep.runs":
        "allocation cli config_file errors experiment ledger.records "
        "ledger.workdir plan_file",
    "sweeper":
        "allocation cli errors ledger.records ledger.workdir progress",
    "tasks":
        "",
    "tasks.answer_extraction":
        "",
    "tasks.arrow_files":
        "errors",
    "tasks.base":
        "tasks.countdown tasks.files tasks.gym tasks.math tasks.problem "
        "tasks.python_reward",
    "tasks.countdown":
        "errors tasks.problem",
    "tasks.dedup":
        "tasks.problem",
    "tasks.files":
        "errors tasks.answer_extraction tasks.arrow_files tasks.dedup "
        "tasks.problem",
    "tasks.grader":
        "errors tasks.answer_extraction tasks.base tasks.grader_pool "
        "tasks.problem tasks.python_reward",
    "tasks.grader_pool":
        "errors tasks.base tasks.grader_process",
    "tasks.grader_process":
        "errors tasks.base tasks.problem",
    "tasks.gym":
        "errors tasks.dedup tasks.problem",
    "tasks.histogram":
        "",
    "tasks.math":
        "errors tasks.math_text tasks.problem",
    "tasks.math_text":
        "",
    "tasks.pass_counts":
        "errors progress tasks.problem",
    "tasks.problem":
        "",
    "tasks.prompts":
        "errors tasks.base tasks.problem types",
    "tasks.python_reward":
        "errors own_file tasks.problem",
    "tasks.strata":
        "errors tasks.problem tasks.stratum_file",
    "tasks.stratum_file":
        "errors own_file tasks.base tasks.problem",
    "training":
        "cli compilation diagnosis evaluate experiment final_table hosts "
        "ledger.checkpoint ledger.records opening profile progress resume "
        "rl.algorithm rl.update rng rollouts rollouts_in_flight run_context "
        "run_state sampled_texts sampling.compile_ahead "
        "sampling.in_flight_queue step step_rollouts stopping summaries "
        "tasks.stratum_file",
    "types":
        "",
    "launch":
        "",
    "launch.bench.__main__":
        "cli errors launch.bench.cases launch.bench.run launch.bench.table "
        "models.decoder profile progress sampling.sampler sampling.sizes",
    "launch.bench.cases":
        "errors",
    "launch.bench.frontier":
        "allocation frontier.analysis frontier.bootstrap frontier.fit_json "
        "frontier.next_sweep frontier.plots frontier.read frontier.report "
        "frontier.study frontier.synthetic",
    "launch.bench.grader":
        "tasks.grader tasks.problem",
    "launch.bench.grader_overlap":
        "config_file rng rollouts run_context stopping tasks.prompts",
    "launch.bench.in_flight":
        "launch.bench.cases launch.bench.ours launch.bench.run rng "
        "sampling.in_flight sampling.in_flight_queue sampling.sampler",
    "launch.bench.machine":
        "",
    "launch.bench.ours":
        "launch.bench.cases mesh models.decoder models.hf_config profile "
        "rl.algorithm rl.optimizer rl.update rng sampling.interrupt "
        "sampling.sampler types",
    "launch.bench.packing":
        "launch.bench.run models.kernels rl.packing sampling.queue "
        "sampling.sampler sampling.sizes",
    "launch.bench.peers":
        "launch.bench.cases launch.bench.ours models.hf_weights "
        "rl.advantages",
    "launch.bench.run":
        "compilation errors launch.bench.cases launch.bench.machine "
        "launch.bench.ours launch.bench.peers launch.bench.work "
        "models.shape profile",
    "launch.bench.table":
        "format launch.bench.cases",
    "launch.bench.work":
        "models.shape",
    "launch.compile.__main__":
        "cli compilation errors experiment launch.compile.devices "
        "launch.compile.programs launch.compile.report launch.compile.slots "
        "progress",
    "launch.compile.devices":
        "errors launch.compile.report mesh planner.cost.machine",
    "launch.compile.programs":
        "errors experiment launch.compile.devices mesh models.decoder "
        "models.hf_config models.lora planner.cost.memory "
        "planner.cost.roofline policy rl.algorithm rl.optimizer rl.packing "
        "rl.update run_context sampling.cache sampling.in_flight "
        "sampling.paged sampling.paged_cache sampling.queue "
        "sampling.sampler sampling.sizes types",
    "launch.compile.report":
        "",
    "launch.compile.slots":
        "format mesh models.decoder policy sampling.sampler",
    "launch.convert":
        "cli config_file errors experiment ledger.bucket ledger.checkpoint "
        "ledger.workdir mesh models.decoder models.hf_config "
        "models.hf_weights models.lora",
    "launch.demo_model":
        "",
    "launch.demo_model.__main__":
        "cli launch.demo_model.make launch.demo_model.wheel progress",
    "launch.demo_model.gguf":
        "errors",
    "launch.demo_model.make":
        "launch.demo_model.gguf launch.demo_model.smollm2 "
        "launch.demo_model.wheel models.hf_weights",
    "launch.demo_model.smollm2":
        "errors launch.demo_model.gguf models.hf_weights",
    "launch.demo_model.wheel":
        "errors",
    "launch.fit":
        "cli frontier.bootstrap frontier.collapse frontier.curves "
        "frontier.result frontier.study launch.record_flags",
    "launch.plan":
        "cli launch.plan_flags planner.planning planner.trainers",
    "launch.plan_flags":
        "allocation cli errors planner.priors planner.request "
        "planner.trainers",
    "launch.pretrain":
        "cli compilation config_file evaluate mesh models.decoder "
        "models.hf_config models.hf_weights progress rl.optimizer "
        "rl.rewards rl.update rng sampling.sampler tasks.countdown "
        "tasks.prompts types",
    "launch.random_checkpoint":
        "cli errors mesh models.decoder models.hf_config models.hf_weights",
    "launch.readme_figure":
        "cli errors frontier.labels frontier.plots",
    "launch.record_flags":
        "cli errors frontier.formats frontier.formats.base frontier.read",
    "launch.slurm":
        "cli errors sweeper",
    "launch.speedup":
        "cli frontier.comparison launch.record_flags",
    "launch.split":
        "",
    "launch.split.__main__":
        "cli launch.split.run",
    "launch.split.config":
        "config_file errors mesh sampling.sampler tasks.base tasks.grader "
        "tasks.problem tasks.prompts tasks.strata",
    "launch.split.measure":
        "experiment launch.split.config mesh models.decoder "
        "models.hf_weights own_file policy progress rl.rewards rng "
        "sampling.sampler tasks.base tasks.grader tasks.pass_counts "
        "tasks.problem tasks.prompts",
    "launch.split.output":
        "errors launch.split.config mesh models.shape own_file progress "
        "tasks.base tasks.histogram tasks.problem tasks.strata "
        "tasks.stratum_file",
    "launch.split.run":
        "compilation config_file errors launch.split.config "
        "launch.split.measure launch.split.output progress tasks.grader "
        "tasks.pass_counts tasks.strata tasks.stratum_file",
    "launch.study":
        "",
    "launch.study.__main__":
        "cli errors launch.study.ledger launch.study.page launch.study.run",
    "launch.study.arms":
        "allocation errors plan_file",
    "launch.study.figures":
        "",
    "launch.study.ledger":
        "errors frontier.study launch.study.arms ledger.records",
    "launch.study.page":
        "errors format frontier.bootstrap frontier.fit_json "
        "frontier.next_sweep launch.study.figures launch.study.ledger "
        "launch.study.reanalysis launch.study.windows ledger.records",
    "launch.study.reanalysis":
        "frontier.analysis frontier.bootstrap frontier.interference "
        "launch.study.ledger launch.study.windows",
    "launch.study.run":
        "api.sweeps cli config_file errors launch.study.arms "
        "launch.study.ledger ledger.records sweeper",
    "launch.study.windows":
        "evaluate frontier.bootstrap frontier.study launch.study.ledger",
    "launch.sweep":
        "api.sweeps cli errors launch.slurm progress sweeper",
    "launch.verify.calibrate":
        "cli errors frontier.analysis frontier.bootstrap frontier.curves "
        "frontier.diagnostics frontier.scalerl frontier.synthetic "
        "frontier.verdict laws progress",
    "launch.verify.checkpoint_parity":
        "cli errors launch.verify.parity mesh models.hf_config "
        "models.tokenizer tasks.problem tasks.prompts",
    "launch.verify.compare":
        "cli errors ledger.bucket ledger.records",
    "launch.verify.kill_and_resume":
        "cli experiment launch.verify.killing",
    "launch.verify.kill_matrix":
        "cli errors launch.verify.killing launch.verify.recipe_runs "
        "ledger.records progress",
    "launch.verify.killing":
        "errors launch.verify.compare launch.verify.processes "
        "ledger.checkpoint ledger.records",
    "launch.verify.many_hosts":
        "cli launch.verify.processes run_context",
    "launch.verify.parity":
        "cli errors mesh models.decoder models.hf_config models.hf_weights "
        "models.lora sampling.sampler types",
    "launch.verify.playbook":
        "cli errors launch.verify.playbook_tables",
    "launch.verify.playbook_tables":
        "allocation errors evaluate frontier.curves frontier.envelope "
        "frontier.scalerl laws planner.priors",
    "launch.verify.processes":
        "launch.verify.compare ledger.records",
    "launch.verify.recipe_runs":
        "config_file experiment",
}
# </imports>


if __name__ == "__main__":
  print(rows())
  if "--write" in sys.argv[1:]:
    replace(pathlib.Path(__file__), ("# <imports>" + "\n", "# </imports>"),
            rows())
    replace(DESIGN, MARKS, f"\n{diagram()}\n")
