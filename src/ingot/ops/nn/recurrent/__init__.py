"""Recurrent layers: LSTM, GRU and RNN, with ONNX's parameters, gate orders and options.

y[t], state = cell(x[t] W^T + b_W, state R^T + b_R, state)
"""

from ingot.ops.nn.recurrent.cells import GRU, LSTM, RNN
from ingot.ops.nn.recurrent.layer import Parameters, Pass, Recurrent

__all__ = ["GRU", "LSTM", "RNN", "Parameters", "Pass", "Recurrent"]
