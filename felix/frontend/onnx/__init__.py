"""ONNX models, checked and read as Relax functions. Nothing here imports PyTorch."""
