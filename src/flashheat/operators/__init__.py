"""A mesh becomes Operators, once: areas, Laplacian, eigenpairs, tangent gradients; and the store that keeps them.

It is separate from the networks because this is the only part that needs a mesh, float64 and a sparse solver.
"""

from .compute import compute_operators as compute_operators
from .container import Operators as Operators
from .csr import CSR as CSR
from .features import hks as hks
from .features import hks_autoscale as hks_autoscale
from .features import hks_scale_free as hks_scale_free
from .features import wks as wks
from .store import OperatorStore as OperatorStore
