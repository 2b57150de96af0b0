"""Data sets, one file each, and the packed batches that training is fed with."""

from flashheat.data.car import load_car as load_car
from flashheat.data.example import Example as Example
from flashheat.data.example import Split as Split
from flashheat.data.folder import load_folder as load_folder
from flashheat.data.potential_flow import load_flow as load_flow
from flashheat.data.rna import load_rna as load_rna
from flashheat.data.sample import Batch as Batch
from flashheat.data.sample import Sample as Sample
from flashheat.data.sample import collate as collate
from flashheat.data.sample import prepare_example as prepare_example
