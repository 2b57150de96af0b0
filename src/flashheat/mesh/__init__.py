"""A file or arrays become a checked triangle mesh, and the mesh a report of its faults."""

from flashheat.mesh.mesh import Mesh as Mesh
from flashheat.mesh.mesh import Normalisation as Normalisation
from flashheat.mesh.primitives import ellipsoid as ellipsoid
from flashheat.mesh.primitives import grid as grid
from flashheat.mesh.primitives import icosphere as icosphere
from flashheat.mesh.primitives import torus as torus
from flashheat.mesh.report import Component as Component
from flashheat.mesh.report import Fault as Fault
from flashheat.mesh.report import MeshReport as MeshReport
