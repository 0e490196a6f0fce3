"""The stage clock under a name that vLLM's worker processes can import; the arm puts this folder on their path."""

import importlib.util
import os
import sys

_path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "stageclock.py")
_spec = importlib.util.spec_from_file_location(__name__, _path)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[__name__] = _module  # instead of this file: the import that runs it hands out what lies here at its end
_spec.loader.exec_module(_module)
