"""Models that OpenVINO computes on CPUs: its own format, and those that it reads (extra `openvino`). It imports
`backends`."""
