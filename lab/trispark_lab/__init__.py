"""Miniature engine of the trispark lab: real mechanisms, simple text.

Importing the package fixes the BLAS thread count before NumPy is loaded: three ranks share the lab machine, and each
step is a handful of small products, for which a thread pool only costs time. The sums are exact in any order.
"""

import os

__version__ = "0.1.0"

for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
