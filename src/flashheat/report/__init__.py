"""A finished run becomes one page that opens in any browser, without a network."""

from flashheat.report.page import write_report as write_report
from flashheat.report.view import MeshView as MeshView
