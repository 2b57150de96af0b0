"""From a configuration to a run folder with a trained network in it, and from there to answers."""

from flashheat.train.config import TrainConfig as TrainConfig
from flashheat.train.demo import demo as demo
from flashheat.train.demo import demo_config as demo_config
from flashheat.train.precompute import precompute as precompute
from flashheat.train.predict import evaluate as evaluate
from flashheat.train.predict import predict as predict
from flashheat.train.predict import predict_mesh as predict_mesh
from flashheat.train.prepare import prepare as prepare
from flashheat.train.progress import make_progress as make_progress
from flashheat.train.run import Interrupted as Interrupted
from flashheat.train.run import describe as describe
from flashheat.train.run import open_run as open_run
from flashheat.train.run import resume as resume
from flashheat.train.run import train as train
