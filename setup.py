"""The only metadata of the package."""

import setuptools

# Tested: 0.10.2, the last for Python 3.11, and 0.12.0.1 on Python 3.13.
JAX = ">=0.10.2,<0.13"
MATH = "math-verify>=0.9,<0.10"  # 0.10 may judge differently
# What its seeds mean, and which of its scorers are sound, was checked for this
# one version: a generator that changes makes other problems of the same seeds.
GYM = "reasoning-gym==0.1.25"
# Paths gs:// of orbax and of our records, through gcsfs; no TensorFlow.
GCS = ["etils[epath-gcs]>=1.13"]
# Reads 4-bit weights; a hash of the result says if another version differs.
GGUF = "gguf>=0.17,<1"

setuptools.setup(
    name="isojax",
    version="0.1.0",
    description="Plans a budget of rollouts of LLM reinforcement learning, "
    "trains with it, and fits a law to the runs.",
    license="Apache-2.0",
    python_requires=">=3.11",  # tested: 3.11 and 3.13
    packages=setuptools.find_packages(
        include=["isojax", "isojax.*", "launch", "launch.*", "configs"]),
    package_data={"isojax": ["assets/*.jsonl", "assets/*/*",
                             "report/*.html"],
                  "launch": ["bench/*.json", "cluster/*", "study/*.jinja"]},
    install_requires=[
        "absl-py>=2.3.1",  # flags of isojax.main and launch
        "array-record>=0.8.1",  # the one format tfds reads without TensorFlow
        "chex>=0.1.91",  # shape contracts of the losses
        "etils[epath]>=1.13",  # paths of checkpoints, as orbax has them
        "flax>=0.12.8,<0.13",  # linen and struct only; 0.12.12 tested
        "importlib-resources>=6.4",  # tfds needs and does not declare it
        f"jax{JAX}",
        "jinja2>=3.1",  # chat templates of transformers, and pages
        "ml-collections>=1.1",  # config files
        "numpy>=2.1",  # 2.4.6 and 2.5.5 tested
        "optax>=0.2.8,<0.3",  # AdamW, clipping, schedules
        "orbax-checkpoint>=0.12.8,<0.13",  # the v0 manager; 1.0 changes it
        "PyYAML>=6",  # options of other trainers; ml_collections needs it too
        "pyarrow>=17",  # Parquet files of problems; tfds needs it too
        "safetensors>=0.8",  # reads bfloat16 without torch
        "scipy>=1.15",  # bounded least squares and Beta quantiles of the fits
        "tensorflow-datasets>=4.9.10,<5",  # gsm8k and tfds folders
        "tensorstore>=0.1.86",  # conditional writes of a bucket; orbax has it
        "tqdm>=4.66",  # progress bars
        "transformers>=5.17,<6",  # tokenizer and config.json; 5.17 was tried
    ],
    extras_require={
        "test": ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100",
                 "matplotlib>=3.9", "tensorboardX>=2.6.2",
                 "wandb>=0.19", "pandas>=2.2",
                 "ruff>=0.12", "import-linter>=2.6",  # see pyproject.toml
                 # makes and runs the notebooks
                 "ipykernel>=7", "ipywidgets>=8", "jupytext>=1.16",
                 "nbclient>=0.10", "nbformat>=5.10",
                 "setuptools>=77",  # builds the wheel that a test runs
                 MATH, GYM, GGUF, *GCS],
        "math": [MATH],  # judges mathematical answers
        "gym": [GYM],  # generates problems
        "demo": [GGUF],  # launch.demo_model
        # Another implementation to compare with; not beside the others, because
        # transformers then imports torch everywhere.
        "parity": ["torch==2.13.0", "peft>=0.18"],
        "gcs": GCS,  # --workdir=gs://...
        "notebook": ["matplotlib>=3.9", "pandas>=2.2",  # of the Python API
                     "ipywidgets>=8"],  # or tqdm warns
        "plot": ["matplotlib>=3.9"],  # figures and report of launch.fit
        "tb": ["tensorboardX>=2.6.2"],  # summaries without TensorFlow
        "wandb": ["wandb>=0.19"],  # log.wandb
        "trackio": ["trackio>=0.43"],  # log.wandb=trackio:PROJECT
        # The range again, or a resolver takes the newest libtpu and an old jax.
        "tpu": [f"jax[tpu]{JAX}"],
        "cuda12": [f"jax[cuda12]{JAX}"],
        "cuda13": [f"jax[cuda13]{JAX}"],
    },
)
