"""On the path of a Python process, this makes it and its children believe in simulated GPUs."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import simulated_gpu

simulated_gpu.use(os.environ)
