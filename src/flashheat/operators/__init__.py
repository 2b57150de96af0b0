"""A mesh becomes Operators, once: areas, Laplacian, eigenpairs, tangent gradients; and the store that keeps them.

It is separate from the networks because this is the only part that needs a mesh, float64 and a sparse solver.
"""

from flashheat.operators.compute import compute_operators as compute_operators
from flashheat.operators.compute import compute_operators_of_many as compute_operators_of_many
from flashheat.operators.container import Operators as Operators
from flashheat.operators.csr import CSR as CSR
from flashheat.operators.features import hks as hks
from flashheat.operators.features import hks_autoscale as hks_autoscale
from flashheat.operators.features import hks_scale_free as hks_scale_free
from flashheat.operators.features import wks as wks
from flashheat.operators.store import OperatorStore as OperatorStore
