"""Runs at the start of every Python process that an arm starts: it hides there what the arm hides in itself.

vLLM looks at a model's architecture in a process of its own, where a torchvision that does not match torch would fail
again. The arm puts this folder on PYTHONPATH only when it had to hide something.
"""

import importlib
import os
import sys

for _name in filter(None, os.environ.get("DRAFTPROOF_HIDE", "").split(",")):
    sys.modules[_name] = None  # type: ignore[assignment]

# A sitecustomize of the environment's own still has its turn.
_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_entry for _entry in sys.path if os.path.abspath(_entry) != _here]
_this = sys.modules.pop("sitecustomize")
try:
    importlib.import_module("sitecustomize")
except ImportError:
    sys.modules["sitecustomize"] = _this
