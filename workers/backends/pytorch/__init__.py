"""Models of PyTorch: TorchScript, programs of `torch.export`, and packages that were compiled ahead of time. It imports
`backends`."""
