# Targets run in .venv, which the first one that needs it makes: see tools/setup_env.sh.
# Written for GNU make 3.81, the one that macOS has.

# A Linux x86-64 machine with nvidia-smi gets TensorFlow's CUDA libraries; GPU=0 or GPU=1 overrules.
ifeq ($(origin GPU),undefined)
GPU := $(shell test "`uname -sm`" = "Linux x86_64" && command -v nvidia-smi >/dev/null && echo 1)
endif
gpu := $(filter 1,$(GPU))
comma := ,
extras := notebooks,tensorboard,test,dev,site$(if $(gpu),$(comma)gpu)

# Another TensorFlow or Keras has an environment of its own; its numbers may differ in the last
# digits.
venv := .venv$(if $(TF),-tf$(TF))$(if $(KERAS),-keras$(KERAS))
python := $(venv)/bin/python
nbval := $(if $(TF)$(KERAS),--nbval-lax,--nbval)

# Stored outputs are those of cores mode, so everything that compares them runs in it. Keras would
# compile with XLA wherever TensorFlow lists a GPU. Bytecode is kept, or each of a hundred processes
# compiles the package again.
plain := env -u MGPU_DEVICES -u MGPU_VERBOSE -u PYTHONDONTWRITEBYTECODE \
         MGPU_MODE=cores CUDA_VISIBLE_DEVICES=-1
pytest := $(python) -m pytest
# Three on two cores, because tests of runners and workers wait, and lessons that start them. Each
# lesson and file goes to whoever is free next: lessons first, then tests, of which the last are short.
files := -n 3 --dist loadfile --no-loadscope-reorder
each := -n 3 --dist load --maxschedchunk 1

# The name of the stamp holds what the environment was made for; a moved one is made again.
ready := $(venv)/.ready-$(if $(gpu),gpu,cpu)$(if $(PYTHON),-$(subst /,-,$(PYTHON)))
again := $(shell test -x $(python) && test "`cat $(venv)/.project 2>/dev/null`" = "`pwd -P`" \
           || echo again)

.PHONY: help lab test quick tools isa thorough counts gpu browser notebooks site bench mutants wheel \
        env lint constraints clean again

help:  ## list the targets
	@echo "Targets:"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "  make %-12s%s\n", $$1, $$2}'
	@echo "Options, with any of them:"
	@echo "  PYTHON=python3.12  the interpreter for the environment (3.11 to 3.13)"
	@echo "  TF=2.18            another TensorFlow (2.18 to 2.21, or latest), in its own environment"
	@echo "  KERAS=3.14         another Keras (3.14, 3.15 or latest), in its own environment"
	@echo "  GPU=0, GPU=1       without or with TensorFlow's CUDA libraries"
	@echo "  UV=                use pip even where uv is installed"
	@echo "  ONLY='fit jobs'  the benchmarks that make bench runs, or the lessons of make gpu"
	@echo "  TESTS=tests/test_trace.py        fewer of what make test runs"
	@echo "  PART=1/6           that part of make thorough's tests"
	@echo "  ISA='not SSE41'    fewer of the settings of make isa"
	@echo "  MUTANTS='--count 10 trace'       how many, and of which rooms, make mutants tries"
	@echo "  TAG=v0.1.0         the tag that make wheel compares with the version"
	@echo "  MGPU_DEVICES=4, MGPU_MODE=cores  what the lessons of make lab and make gpu run on"
	@echo "  LAB='--no-browser --port=9000'   more options for JupyterLab"

$(ready): pyproject.toml constraints.txt tests/kerashub.txt $(again)
	@PYTHON="$(PYTHON)" sh tools/setup_env.sh "$(venv)" "$(extras)" "$(TF)" "$(KERAS)"
	@touch "$@"

# A kernel called python3 on JUPYTER_PATH would be taken before the environment's own.
lab: $(ready)  ## open the lessons in JupyterLab, on this machine only
	env -u JUPYTER_PATH $(python) -m jupyterlab --ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
	    $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB) notebooks/00_meet_your_machine.ipynb

test: $(ready)  ## unit tests, notebook hygiene, and every notebook against its stored outputs
	$(plain) MGPU_REPEATS=1 $(pytest) $(files) $(nbval) $(or $(TESTS),notebooks tests)

quick: $(ready)  ## of make test, what the files that changed since main can break, by import
	$(plain) MGPU_REPEATS=1 $(python) tools/quick.py $(each) $(nbval)

tools: $(ready)  ## the tests of Makefile, builds of notebooks and wheel, benchmarks and verdict
	$(plain) $(pytest) $(files) tests -m "tools and not thorough"

isa: $(ready)  ## every notebook against its stored outputs, as other processors would compute them
	$(plain) $(pytest) $(each) tests/test_variants.py -m isa $(if $(ISA),-k "$(ISA)")

thorough: $(ready)  ## the long tests: larger Keras models, workers that train together
	$(plain) $(pytest) $(each) --durations=15 tests -m thorough $(if $(PART),--part $(PART))

counts: $(ready)  ## every notebook to its end on other numbers of devices, 1 to 8; values may differ
	$(plain) $(pytest) $(each) tests/test_variants.py -m counts

gpu: $(ready)  ## every notebook and benchmark on this machine's GPUs: a verdict, and a card of it
	$(python) tools/gpu_verdict.py $(ONLY)

browser: site  ## in Chromium: every notebook as a GPU machine places and compiles it; every page of the site
	$(plain) $(pytest) $(each) tests/test_browser.py tests/test_site.py tests/test_calculator.py \
	    tests/test_traces.py -m "browser or site"

notebooks: $(ready)  ## build notebooks/*.ipynb from notebooks/source/*.py, outputs included
	$(python) tools/build_notebooks.py

site: $(ready)  ## build the site in build/site, from the stored notebooks
	$(python) tools/build_site.py

bench: $(ready)  ## run the benchmarks: one table of their ratios; cards and a chart in results/
	@$(python) benchmarks $(ONLY)

mutants: $(ready)  ## break some rooms in small ways, and list what no test notices
	$(plain) $(python) tools/mutants.py $(MUTANTS)

wheel: $(ready)  ## build wheel and sdist in dist/, and check them as a release does
	$(python) tools/release.py $(if $(TAG),--tag "$(TAG)")

env: $(ready)  ## make the environment in .venv and nothing else

lint: $(ready)  ## look for mistakes in the code without running it
	$(python) -m ruff check .
	$(python) -m mypy
	sh -n tools/setup_env.sh
	bash -n .ci/run

constraints:  ## compile constraints.txt again from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --upgrade \
	    --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	    --output-file constraints.txt pyproject.toml

clean:  ## remove the environments and everything that tools have left behind
	rm -rf .venv .venv-tf* .venv-keras* .venv-peers build dist .out .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -o -name .ipynb_checkpoints -o -name '*.egg-info' | xargs rm -rf
