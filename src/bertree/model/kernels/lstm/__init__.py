"""The layers of an LSTM, and its cells on a GPU."""
