"""Models in ONNX files, computed by ONNX Runtime (extra `onnx`). It imports `backends`."""
